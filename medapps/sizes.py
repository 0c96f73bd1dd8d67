"""Numbers of bytes, from people and for people."""

from __future__ import annotations

import re

from medapps.errors import MedappsError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(text: str, option: str = "budget") -> int:
    """64MB is 64 million bytes, 64MiB is 64 times 2^20."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", text.lower())
    if not match:
        raise MedappsError(f"--{option} takes a size such as 64MB or 1.5GiB, not {text!r}.")
    count = float(match[1]) * (_UNITS | _BINARY)[match[2] or ""]
    if count >= 2**63:
        raise MedappsError(f"--{option} takes a size below 8 EiB, not {text!r}.")
    return int(count)


def show_bytes(count: float) -> str:
    """A size for people: 98.0 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError(count)
