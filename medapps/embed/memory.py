"""Memory: what a training needs, what there is, and an allocator that keeps its pages."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path

from medapps.embed.config import MedConfig
from medapps.embed.optim import state_bytes
from medapps.errors import MedappsError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_KEEP = 2**30
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def keep_pages() -> bool:
    """Tell the C allocator not to give large blocks back between steps; True where it understood.

    Otherwise every temporary of a step is mapped and faulted in anew, a third of the time on a CPU.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _KEEP)) and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))


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


def peak_rss_bytes() -> int:
    """The most memory that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def needed_bytes(
    entities: int,
    relations: int,
    width: int,
    triples: int,
    config: MedConfig,
    *,
    best_in_memory: bool,
) -> dict[str, int]:
    """Bytes by purpose that a training takes beyond the graph itself."""
    rows = entities + relations
    tables = (2 if config.table == "bf16" else 4) * entities * width + 4 * relations * width
    shared = config.negative_mode == "shared"
    drawn = -(-config.batch // config.chunk) * config.negatives
    touched = 2 * config.batch + (
        drawn if shared else min(entities, config.batch * config.negatives)
    )
    scores = len(config.dims) * config.chunk * config.negatives
    small = min(scores, 2**19) if config.negative_norm == "per_positive" else scores
    known = 24 * triples if config.filter_known else 0
    return {
        "tables": tables,
        "optimiser": state_bytes(config.optimiser, rows, width, len(config.dims)),
        "best state": tables if best_in_memory else 0,
        "step": 4 * (4 * touched * width + 6 * config.batch * width + 5 * small),
        "known triples": known + (4 * triples if config.subsampling else 0),
    }


def check_memory(needed: dict[str, int], config: MedConfig, processes: int = 1) -> int:
    """The sum of `needed`; refuses with the options that lower it when it does not fit.

    Where several processes on this machine need as much each, their sum must fit.
    """
    total = sum(needed.values())
    free = available_bytes()
    if free is None or total * processes <= 0.95 * free:
        return total
    needed = {name: size * processes for name, size in needed.items()}
    total *= processes
    parts = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in needed.items() if size)
    lower = [f"smaller --dims (now {','.join(map(str, config.dims[-3:]))})"]
    if config.table == "fp32":
        lower.append("--table bf16")
    if config.optimiser != "adagrad":
        lower.append("--set train.optimiser=adagrad")
    if needed["best state"]:
        lower.append("--set train.patience=null")
    if config.filter_known:
        lower.append("--set train.filter_known=false")
    raise MedappsError(
        f"Training needs {total / 2**30:.2f} GiB ({parts}) and {free / 2**30:.2f} GiB are free.",
        fix="What lowers it: " + "; ".join(lower) + ".",
    )
