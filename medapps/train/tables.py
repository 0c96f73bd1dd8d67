"""Tables of rows: large pages, start values, and equal rows brought together before an update."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from medapps.arrays import forget
from medapps.errors import MedappsError
from medapps.model.kernels.segments import scale_segments_, segment_sums
from medapps.model.rule import Bounds
from medapps.store import disk_errors
from medapps.train.order import ROUNDING, Ranges, start_rows, stream


def take_rows(table: Tensor, ids: Tensor, out: Tensor) -> Tensor:
    """Rows `ids` (k,) of the table into `out` (k, width), in the number type of `out`."""
    if table.dtype == out.dtype:
        return torch.index_select(table, 0, ids, out=out)
    return out.copy_(table.index_select(0, ids))


def add_rows(table: Tensor, ids: Tensor, move: Tensor, seed: int, count: int) -> None:
    """Add `move` (u, width) to rows `ids` (u,), unique; `count` numbers the update."""
    if table.dtype != torch.bfloat16:
        table.index_add_(0, ids, move)
        return
    rows = table.index_select(0, ids).to(torch.float32).add_(move)
    noise = rounding_noise(seed, count, rows.numel()).to(rows.device)
    table.view(torch.int16)[ids.long()] = rounded(rows, noise.view_as(rows))


def as_numpy(table: Tensor) -> np.ndarray:
    """The table without a copy; bfloat16 as bit patterns in uint16, a working file as its map."""
    mapped = getattr(table, "mapped", None)
    if mapped is not None:
        return mapped
    table = table.detach().cpu()
    if table.dtype == torch.bfloat16:
        return table.view(torch.int16).numpy().view(np.uint16)
    return table.numpy()


def as_tensor(array: np.ndarray) -> Tensor:
    """The reverse of `as_numpy`; a memory map that is read-only must only be read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        if array.dtype == np.uint16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)


def rounding_noise(seed: int, count: int, size: int) -> Tensor:
    """int16 (size,): the random bits of update `count`."""
    words = stream(seed, ROUNDING, count).bit_generator.random_raw(-(-size // 4))
    return torch.from_numpy(np.asarray(words).view(np.int16)[:size])


def rounded(rows: Tensor, noise: Tensor) -> Tensor:
    """int16: bit patterns of bfloat16 for float32 `rows`, which are overwritten."""
    bits = rows.view(torch.int32)
    bits.add_(noise).add_(2**15)  # noise is signed: together 0 to 2^16 - 1
    return bits.bitwise_right_shift_(16).to(torch.int16)


HUGE = 64 * 2**20
"""Tables from this many bytes on ask the system for large pages."""


def blank(
    shape: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Zeros; on a CPU in large pages where the system gives them, since rows are read at
    random.
    """
    size = int(np.prod(shape)) * dtype.itemsize
    if device.type != "cpu" or size < HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype, device=device)
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        block.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(block, dtype=dtype).view(shape)


def fill(table: Tensor, seed: int, which: int, size: float, *, begin: int = 0) -> Tensor:
    """Write the start values of rows from `begin` on into a table; a working file stays on disk."""
    for first in range(0, len(table), 4096):
        count = min(4096, len(table) - first)
        values = start_rows(seed, which, begin + first, count, table.shape[1], size)
        table[first : first + count] = torch.from_numpy(values)
        if hasattr(table, "mapped"):
            forget(as_numpy(table))
    return table


@dataclass(frozen=True)
class Groups:
    """Equal ids brought together: unique ids ascending, and where each one's members are."""

    ids: Tensor  # (u,)
    order: Tensor  # (k,): positions, members of one id side by side
    starts: Tensor  # (u,): where the members of an id begin in `order`


def group(ids: Tensor) -> Groups:
    """Bring equal ids (k,) together; stable, hence deterministic."""
    ordered, order = torch.sort(ids, stable=True)
    new = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
    torch.ne(ordered[1:], ordered[:-1], out=new[1:])
    starts = new.nonzero().flatten()
    return Groups(ordered[starts], order, starts)


def summed(rows: Tensor, groups: Groups) -> Tensor:
    """(u, width): sums of the rows of each id, in a fixed order."""
    return embedding_bag(groups.order, rows, groups.starts, mode="sum")


_PAGE = mmap.PAGESIZE


def working_file(folder: Path | None, shape: tuple[int, ...], dtype: str) -> np.memmap:
    """Zeros in a file without a name in `folder` (or where temporary files go), space reserved."""
    place = Path(folder or tempfile.gettempdir())
    with disk_errors(place):
        place.mkdir(parents=True, exist_ok=True)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        free = shutil.disk_usage(place).free
        if size > free:  # asked first: a reservation that fails would fill the disk for a moment
            raise MedappsError(
                f"A working file of {size / 2**30:.2f} GiB does not fit on the disk of {place}, "
                f"where {free / 2**30:.2f} GiB are free.",
                fix="Free some space, or choose another place with --workspace.",
            )
        with tempfile.TemporaryFile(dir=place) as file:
            os.posix_fallocate(file.fileno(), 0, max(1, size))
            return np.memmap(file, dtype, "r+", shape=shape)


def working_table(folder: Path | None, shape: tuple[int, ...]) -> Tensor:
    """The same as a float32 tensor; `rounding.as_numpy` gives the mapped array back."""
    array = working_file(folder, shape, "float32")
    table = torch.from_numpy(array)
    table.mapped = array  # type: ignore[attr-defined]
    return table


@dataclass
class WorkingSet:
    """The ranges of rows of some tables that are in memory now."""

    tables: Sequence[Tensor]
    ranges: Ranges = field(default=())

    def move(self, ranges: Ranges) -> None:
        """Give back the rows of ranges that are no longer needed; announce new ones."""
        for table in self.tables:
            array = as_numpy(table)
            for old in set(self.ranges) - set(ranges):
                _advise(array, old, mmap.MADV_DONTNEED)
            for new in set(ranges) - set(self.ranges):
                _advise(array, new, mmap.MADV_WILLNEED)
        self.ranges = ranges

    def clear(self) -> None:
        """Give everything back."""
        for table in self.tables:
            forget(as_numpy(table))
        self.ranges = ()


def _advise(array: np.ndarray, rows: tuple[int, int], advice: int) -> None:
    """Tell the system about the whole pages of some rows."""
    assert isinstance(array, np.memmap) and array._mmap is not None  # type: ignore[attr-defined]
    size = array.strides[0]
    begin, end = rows[0] * size // _PAGE * _PAGE, rows[1] * size // _PAGE * _PAGE
    if end > begin:
        array._mmap.madvise(advice, begin, end - begin)  # type: ignore[attr-defined]


EPS = 1e-10


ADAM_EPS = 1e-8


BETAS = (0.9, 0.999)


@dataclass(frozen=True)
class Optimiser:
    """Moves rows of one table; `count` of steps so far is the caller's."""

    name: str
    state: dict[str, Tensor]
    bounds: Bounds
    rates: Tensor
    """(n,): what multiplies the learning rate in each segment."""
    seed: int = 0
    """Of the rounding of a bfloat16 table."""
    length: float | None = None
    """What moved rows are scaled back to; None leaves them as they are."""
    first: int = 0
    """Rows before it never move."""

    def step(self, table: Tensor, ids: Tensor, grad: Tensor, lr: float, count: int) -> None:
        """Move rows `ids` (u,), unique, by their summed gradients (u, width); overwrites grad."""
        if self.first:
            ids, grad = ids[ids >= self.first], grad[ids >= self.first]
            if not len(ids):
                return
        rates = lr * self.rates
        if self.name == "adagrad":
            move = _adagrad(self.state["square"], ids, grad, rates, self.bounds)
        else:
            move = _lazy_adam(self.state, ids, grad, count)
            scale_segments_(move, rates.unsqueeze(1).expand(-1, len(move)), self.bounds)
        if self.length is not None:
            move = _turn(table[ids].to(move.dtype), move, self.length)
        add_rows(table, ids, move, self.seed, count)


def make_optimiser(
    name: str,
    table: Tensor,
    bounds: Bounds | None = None,
    *,
    rate: float = 1.0,
    rate_power: float = 0.0,
    length: float | None = None,
    seed: int = 0,
    fresh: Callable[[tuple[int, int]], Tensor] | None = None,
) -> Optimiser:
    """Fresh state for `table`, whose columns are cut at `bounds` (one segment when None).

    `rate` multiplies all rates; with `rate_power` q the segment that ends at column w has rates
    (width / w)^q times as large. `fresh` makes the zeros of the state.
    """
    bounds = bounds or (0, table.shape[1])
    kind = torch.promote_types(table.dtype, torch.float32)
    ends = torch.tensor(bounds[1:], dtype=kind, device=table.device)
    rates = rate * (ends[-1] / ends) ** rate_power
    fresh = fresh or partial(blank, device=table.device)
    if name == "adagrad":
        square = fresh((len(table), len(bounds) - 1))
        return Optimiser(name, {"square": square}, bounds, rates, seed, length)
    shape = (table.shape[0], table.shape[1])
    moments = {key: fresh(shape).to(kind) for key in ("first", "second")}
    return Optimiser(name, moments, bounds, rates, seed, length)


def state_bytes(name: str, rows: int, width: int, segments: int) -> int:
    """Bytes of the state, whatever the number type of the table."""
    return 4 * rows * segments if name == "adagrad" else 8 * rows * width


def _adagrad(square: Tensor, ids: Tensor, grad: Tensor, rates: Tensor, bounds: Bounds) -> Tensor:
    total = square[ids]  # (u, n)
    widths = torch.tensor(bounds, dtype=grad.dtype, device=grad.device).diff()
    total += segment_sums(grad * grad, bounds).T / widths
    square[ids] = total
    return scale_segments_(grad, total.sqrt_().add_(EPS).reciprocal_().mul_(-rates).T, bounds)


def _lazy_adam(state: dict[str, Tensor], ids: Tensor, grad: Tensor, count: int) -> Tensor:
    first = state["first"][ids].mul_(BETAS[0]).add_(grad, alpha=1 - BETAS[0])
    second = state["second"][ids].mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
    state["first"][ids] = first
    state["second"][ids] = second
    return _adam_move(first, second, count)


def _adam_move(first: Tensor, second: Tensor, count: int) -> Tensor:
    """-m^ / (sqrt(v^) + eps), for a rate of one; overwrites its arguments."""
    scale = 1 / (1 - BETAS[0] ** (count + 1))
    root = second.div_(1 - BETAS[1] ** (count + 1)).sqrt_().add_(ADAM_EPS)
    return first.div_(root).mul_(-scale)


def _turn(rows: Tensor, move: Tensor, length: float) -> Tensor:
    """The move from rows to where rows + move point, at this length."""
    moved = move.add_(rows)
    longest = torch.linalg.vector_norm(moved, dim=1, keepdim=True).clamp_min_(EPS)
    return moved.mul_(length / longest).sub_(rows)
