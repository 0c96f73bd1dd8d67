"""Memory and disk: what a training needs, what there is, and an allocator that keeps its pages."""

from __future__ import annotations

import ctypes
import math
import resource
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from medapps.errors import MedappsError
from medapps.graph.known_triples import known_bytes, making_bytes
from medapps.memory import fitting
from medapps.model.rules import RULES
from medapps.train.config import MedConfig
from medapps.train.tables import state_bytes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_KEEP = 2**30
BASE = 400 * 2**20
"""Memory of the program and its libraries before it holds anything."""
MOST_PARTITIONS = 1024


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


def peak_rss_bytes() -> int:
    """The most memory that this process has held.

    The system's own account (VmHWM) comes first: `getrusage` of a new program also counts what the
    process that started it held.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@dataclass(frozen=True)
class Sizes:
    """What decides how much memory and disk a training takes."""

    entities: int
    relations: int
    triples: int
    config: MedConfig

    @property
    def width(self) -> int:
        """Numbers in the row of an entity."""
        return self.config.dims[-1] * RULES[self.config.scorer].REALS[0]

    @property
    def tables(self) -> int:
        """Bytes of both tables."""
        number = 2 if self.config.hardware.table == "bf16" else 4
        return (number * self.entities + 4 * self.relations) * self.width

    @property
    def optimiser(self) -> int:
        """Bytes of the state of both optimisers."""
        config, rows = self.config, self.entities + self.relations
        return state_bytes(config.optimiser.name, rows, self.width, len(config.dims))

    @property
    def known(self) -> int:
        """Bytes of the index of known triples, if it is wanted."""
        wanted = self.config.sampling.filter_known
        return known_bytes(self.triples, self.entities) if wanted else 0


def needed_bytes(sizes: Sizes, *, best_in_memory: bool) -> dict[str, int]:
    """Bytes by purpose that a training takes beyond the graph itself."""
    needed = {
        "tables": sizes.tables,
        "optimiser": sizes.optimiser,
        "best state": sizes.tables if best_in_memory else 0,
        "step": step_bytes(sizes),
        "known triples": sizes.known,
    }
    if sizes.config.hardware.table == "mmap":
        plan = plan_mapped(sizes)
        resident = 2 if plan.partitions > 1 else 1
        needed["tables"] = sizes.tables * resident // plan.partitions
        needed["optimiser"] = sizes.optimiser * resident // plan.partitions
        needed["known triples"] = sizes.known if plan.filter_known else 0
    return needed


def step_bytes(sizes: Sizes) -> int:
    """Bytes of the buffers of a step."""
    config, sampling, width = sizes.config, sizes.config.sampling, sizes.width
    drawn = -(-sampling.batch // sampling.chunk) * sampling.negatives
    if sampling.negative_mode == "independent":
        drawn = min(sizes.entities, sampling.batch * sampling.negatives)
    touched = 2 * sampling.batch + drawn
    scores = len(config.dims) * sampling.chunk * sampling.negatives
    small = min(scores, 2**19) if config.loss.negative_norm == "per_positive" else scores
    return 4 * (4 * touched * width + 6 * sampling.batch * width + 5 * small)


@dataclass(frozen=True)
class MappedPlan:
    """How a table in a file is cut, so that what is in memory stays within the limit."""

    partitions: int
    filter_known: bool
    """False where the index of known triples would take too much of the limit."""


def plan_mapped(sizes: Sizes) -> MappedPlan:
    """The fewest partitions that fit; depends on the sizes and the config alone."""
    config, entities, triples = sizes.config, sizes.entities, sizes.triples
    limit = config.hardware.memory_bytes
    assert limit is not None
    fixed = BASE + step_bytes(sizes) + entities
    known = sizes.known
    keep = known <= (limit - fixed) / 4 and known + making_bytes(triples) <= limit - BASE
    fixed += known if keep else 0
    row = 4 * sizes.width
    row += state_bytes(config.optimiser.name, 1, sizes.width, len(config.dims))
    count = 1
    while count <= MOST_PARTITIONS:
        resident, pairs = (2, count * (count - 1) // 2) if count > 1 else (1, 1)
        ends = 12 * triples / pairs + 12 * triples * resident / count
        if fixed + resident * -(-entities // count) * row + ends <= limit:
            return MappedPlan(count, config.sampling.filter_known and keep)
        count = count + 1 if count < 32 else count + count // 16
    least = fixed + 2 * (row * entities + 12 * triples) / MOST_PARTITIONS
    raise MedappsError(
        f"{limit / 2**30:.2f} GiB are too little for this training even with the table in a file: "
        f"{BASE / 2**30:.2f} go to the program, {(fixed - BASE) / 2**30:.2f} to a step.",
        fix=f"Give it --memory {math.ceil(10 * least / 2**30) / 10}GiB or more.",
    )


def check_memory(needed: dict[str, int], config: MedConfig, processes: int = 1) -> int:
    """The sum of `needed`; refuses with the options that lower it when it does not fit.

    Where several processes on this machine need as much each, their sum must fit.
    """
    limit = None if config.hardware.table == "mmap" else config.hardware.memory_bytes
    lower = [f"smaller --dims (now {','.join(map(str, config.dims[-3:]))})"]
    if config.hardware.table == "fp32":
        lower.append("--table bf16")
    if config.hardware.table != "mmap" and processes == 1:
        lower.append("--table mmap")
    if config.optimiser.name != "adagrad":
        lower.append("--set train.optimiser=adagrad")
    if needed["best state"]:
        lower.append("--set train.patience=null")
    if config.sampling.filter_known:
        lower.append("--set train.filter_known=false")
    fitting("Training", {name: size * processes for name, size in needed.items()}, lower, limit)
    return sum(needed.values())


def needed_disk(sizes: Sizes) -> dict[str, int]:
    """Bytes by purpose that a training writes: a checkpoint exists twice while it is replaced."""
    config, state = sizes.config, sizes.tables + sizes.optimiser
    copies = 2 + (2 if config.validation.patience is not None else 0)
    mapped = config.hardware.table == "mmap"
    return {
        "checkpoints": copies * state,
        "working files": state + 12 * sizes.triples if mapped else 0,
        "embedding": sizes.tables,
    }


def check_disk(sizes: Sizes, folder: Path) -> None:
    """Refuse a training whose files do not fit on the disk of `folder`."""
    config, needed = sizes.config, needed_disk(sizes)
    place = folder
    while not place.exists():
        place = place.parent
    free, total = shutil.disk_usage(place).free, sum(needed.values())
    if total <= free:
        return
    parts = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in needed.items() if size)
    lower = [f"smaller --dims (now {','.join(map(str, config.dims[-3:]))})"]
    if config.hardware.table != "bf16":
        lower.append("--table bf16")
    raise MedappsError(
        f"Training writes up to {total / 2**30:.2f} GiB ({parts}) and {free / 2**30:.2f} GiB are "
        f"free on the disk of {folder}.",
        fix="Free some space, choose another --workspace, or: " + "; ".join(lower) + ".",
    )
