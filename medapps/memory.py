"""How much memory can still be taken, and a refusal of work that needs more."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path

from medapps.errors import MedappsError

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def fitting(
    what: str, needed: Mapping[str, int], lower: Sequence[str], allowed: int | None = None
) -> int:
    """The sum of bytes by purpose; refuses, with what lowers it, when it does not fit."""
    total, free = sum(needed.values()), available_bytes()
    if allowed is not None:
        free = min(free or allowed, allowed)
    if free is None or total <= 0.95 * free:
        return total
    parts = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in needed.items() if size)
    word = "are free" if allowed is None or free < allowed else "are allowed"
    raise MedappsError(
        f"{what} needs {total / 2**30:.2f} GiB ({parts}) and {free / 2**30:.2f} GiB {word}.",
        fix="What lowers it: " + "; ".join(lower) + ".",
    )


def available_bytes() -> int | None:
    """Memory that can still be taken within this process's limits; None where unknown."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    for path in _LIMITS:
        try:
            limit = int(Path(path).read_text())
            used = int(
                Path(path.replace("max", "current").replace("limit_in", "usage_in")).read_text()
            )
        except (OSError, ValueError):
            continue
        free = min(free, max(0, limit - used))
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        free = min(free, max(0, soft - size))
    return free
