"""Bytes of a crop before it is made, and the largest crop that fits into a number of bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from medapps.crop.crop import Crop
from medapps.crop.quantize import DTYPES
from medapps.errors import MedappsError
from medapps.graph.ids import fence_bytes
from medapps.sizes import show_bytes

_OVERHEAD = 16 * 2**10
"""Headers and the manifest, rounded up."""


def crop_bytes(
    source: Crop, dtype: str, rows: np.ndarray | None = None, *, relations: bool = True
) -> int:
    """Upper bound of the bytes of `source` exported as safetensors or npz, names included."""
    count = len(source.entity_ids) if rows is None else len(rows)
    row = source.width * np.dtype(dtype).itemsize + (4 if dtype == "int8" else 0)
    names = _name_bytes(source, rows)
    users = 4 * len(source.users) if rows is None and len(source.users) < count else 0
    extra = 0
    if relations and source.relations is not None and source.relation_ids is not None:
        extra = source.relations.size * 4
        extra += sum(part.nbytes for part in source.relation_ids.arrays().values())
    return count * row + names + users + extra + _OVERHEAD


def _name_bytes(source: Crop, rows: np.ndarray | None) -> int:
    ids = source.entity_ids
    if ids.offsets is None:
        return 8 * (len(ids) if rows is None else len(rows))
    offsets = np.asarray(ids.offsets)
    lengths = np.diff(offsets) if rows is None else offsets[rows + 1] - offsets[rows]
    return int(lengths.sum()) + 8 * (len(lengths) + 1) + fence_bytes(lengths)


@dataclass(frozen=True)
class Fit:
    """A size that fits."""

    dim: int
    dtype: str
    bytes: int


def fit_budget(
    budget: int,
    crops: Iterable[Crop],
    *,
    dtypes: Iterable[str] = DTYPES,
    rows: np.ndarray | None = None,
    relations: bool = True,
) -> Fit:
    """The largest dim that fits into `budget` bytes, in the most precise number type that fits."""
    fits = [
        Fit(crop.dim, dtype, crop_bytes(crop, dtype, rows, relations=relations))
        for crop in crops
        for dtype in dtypes
    ]
    fitting = [fit for fit in fits if fit.bytes <= budget]
    if not fitting:
        least = min(fits, key=lambda fit: fit.bytes)
        raise MedappsError(
            f"Nothing fits into {show_bytes(budget)}: the smallest crop, dim {least.dim} as "
            f"{least.dtype}, takes {show_bytes(least.bytes)}.",
            fix="Raise --budget, or keep fewer entities with --users-only or --ids FILE.",
        )
    return max(fitting, key=lambda fit: (fit.dim, fit.bytes))
