"""Rows of a bfloat16 table: read as float32, moved in float32, written back by stochastic rounding.

A float32 number between two neighbouring bfloat16 numbers goes to either with the probability that
keeps its expectation: sixteen random bits are added to its bit pattern, then the lower sixteen are
cut off. So small moves survive on average, which rounding to nearest would lose. The random bits
are a function of seed and update, so that equal seeds and resumed runs give equal tables.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from medapps.train.random_streams import ROUNDING, stream


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
