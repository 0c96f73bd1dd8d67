"""The one exception that a user is meant to read."""

from __future__ import annotations


class MedappsError(Exception):
    """The user's input or machine is at fault: says what is wrong and what repairs it."""

    def __init__(self, problem: str, *, fix: str | None = None) -> None:
        self.problem = problem
        self.fix = fix
        super().__init__(problem if fix is None else f"{problem} {fix}")


class Interrupted(Exception):
    """Work was stopped by a signal after a resumable state was written."""

    def __init__(self, message: str = "stopped", signal_number: int = 2) -> None:
        self.signal_number = signal_number
        super().__init__(message)
