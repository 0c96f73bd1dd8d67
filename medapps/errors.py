"""The one exception that a user is meant to read."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

_USER = re.compile(r"(://)([^/\s:@'\"]*)(:[^/\s'\"]*)?@(?=[\w\[])")
_OPTION = re.compile(r"(?i)\b(password|passwd|pwd|token|secret)=[^&\s'\"]+")


class MedappsError(Exception):
    """The user's input or machine is at fault: says what is wrong and what repairs it."""

    def __init__(self, problem: str, *, fix: str | None = None) -> None:
        self.problem = problem
        self.fix = fix
        super().__init__(problem if fix is None else f"{problem} {fix}")


class Interrupted(BaseException):
    """Work was stopped by a signal; as with KeyboardInterrupt, no library may catch it as an error.

    Where a state to resume from was written, the message says so.
    """

    def __init__(self, message: str = "stopped", signal_number: int = 2) -> None:
        self.signal_number = signal_number
        super().__init__(message)


def masked(text: str) -> str:
    """A text without the passwords of the addresses in it."""
    for secret in _secrets():
        text = text.replace(secret, "***")
    text = _USER.sub(lambda m: f"{m[1]}{m[2]}:***@" if m[3] else f"{m[1]}***@", text)
    return _OPTION.sub(r"\1=***", text)


def _secrets() -> list[str]:
    """Passwords and tokens in the environment, longest first."""
    found = {os.environ.get(f"MLFLOW_TRACKING_{word}", "") for word in ("PASSWORD", "TOKEN")}
    address = os.environ.get("MLFLOW_TRACKING_URI", "").partition("://")[2]
    password = address.rpartition("@")[0].partition(":")[2]
    found |= {password, unquote(password), os.environ.get("MEDAPPS_TOKEN", "")}
    return sorted((secret for secret in found if len(secret) > 3), key=len, reverse=True)
