"""The nearest entities of a crop: exactly, or by an index of faiss (the `ann` extra).

Exact search looks at every vector, a block at a time; an index is measured against it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from medapps.crop.crop import Crop, Names
from medapps.crop.quantize import refuse_broken
from medapps.errors import MedappsError
from medapps.store import REPLACE, read_manifest, writing

_BLOCK_NUMBERS = 2**20
"""float32 numbers of differences held at once."""


def similar(crop: Crop, names: Names, k: int = 20, *, users_only: bool = True) -> pl.DataFrame:
    """The k nearest of each name, itself left out: name, rank, neighbour, distance.

    Distance is that of the crop's scorer: L1, else Euclidean. Equal distances come in id order.
    """
    rows = candidates(crop, users_only=users_only)
    queries = crop.rows_of(names)
    return as_table(crop, queries, *nearest(crop, queries, min(k, len(crop.entities)), rows))


@dataclass(frozen=True)
class Neighbours:
    """Neighbours, and how far they can be trusted."""

    table: pl.DataFrame
    recall: float = 1.0
    """Share of the exact neighbours that are found: 1 for exact search, measured for an index."""
    exact: bool = True


def search(
    crop: Crop, names: Names, k: int, *, users_only: bool = True, indexes: Path | None = None
) -> Neighbours:
    """Exact search, or by an index that is kept in the folder `indexes` for the next time."""
    if indexes is None:
        return Neighbours(similar(crop, names, k, users_only=users_only))
    from medapps.crop.similar import build_index, nearest_in, open_index, recall

    rows, k = candidates(crop, users_only=users_only), min(k, len(crop.entities))
    queries = crop.rows_of(names)
    content = crop.manifest.digest if crop.manifest else crop.about.get("embedding")
    if content:
        index = open_index(indexes / f"{content[:16]}-{crop.dim}-{users_only}", crop, rows)
    else:  # of an unsaved one nothing says that an index is its own
        index = build_index(crop, rows)
    table = as_table(crop, queries, *nearest_in(index, crop, queries, k))
    return Neighbours(table, recall(index, crop, rows, k), exact=False)


def candidates(crop: Crop, *, users_only: bool) -> np.ndarray | None:
    """int32: the rows among which neighbours are sought; None for all."""
    if not users_only or len(crop.users) == len(crop.entity_ids):
        return None
    if not len(crop.users):
        raise MedappsError("This crop knows no users.", fix="Seek among all entities: --all.")
    return np.asarray(crop.users)


def nearest(
    crop: Crop, queries: np.ndarray, k: int, rows: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(q, k) rows and distances, ascending; -1 and inf where there are fewer than k others."""
    if k < 1:
        raise MedappsError(f"-k takes a number of at least 1, not {k}.")
    wanted = crop.rows(queries)  # (q, width)
    refuse_broken(wanted, lambda row: crop.entity_ids.names(queries[[row]])[0])
    best = np.full((len(queries), k), np.inf, np.float32)
    best_rows = np.full((len(queries), k), -1, np.int64)
    per_block = max(k, _BLOCK_NUMBERS // max(1, wanted.size))
    for found, vectors in _blocks(crop, rows, per_block):
        distance = _distances(wanted, vectors, crop.spec.norm)  # (q, block)
        distance[(queries[:, None] == found) | np.isnan(distance)] = np.inf  # itself, and no number
        best, best_rows = _merge(best, best_rows, distance, found)
    best_rows[np.isinf(best)] = -1
    return best_rows.astype(np.int32), best if crop.spec.norm == "l1" else np.sqrt(best)


def _blocks(
    crop: Crop, rows: np.ndarray | None, size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    count = len(crop.entity_ids) if rows is None else len(rows)
    for start in range(0, count, size):
        part = slice(start, min(start + size, count))
        found = np.arange(part.start, part.stop) if rows is None else rows[part]
        yield found, crop.rows(part if rows is None else found)


def _distances(wanted: np.ndarray, vectors: np.ndarray, norm: str) -> np.ndarray:
    """(q, block): L1, else squared Euclidean, from differences and so without cancellation."""
    difference = wanted[:, None] - vectors  # (q, block, width)
    if norm == "l1":
        return np.abs(difference).sum(2)
    return np.einsum("qbw,qbw->qb", difference, difference)


def _merge(
    best: np.ndarray, best_rows: np.ndarray, distance: np.ndarray, found: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The k least of what was best and a new block; of equal ones those with the least row."""
    count, k = best.shape
    pool = np.concatenate([best, distance], 1)
    rows = np.concatenate([best_rows, np.broadcast_to(found, distance.shape)], 1)
    limit = np.partition(pool, k - 1, axis=1)[:, k - 1 : k]
    query, column = np.nonzero(pool <= limit)
    order = np.lexsort((rows[query, column], pool[query, column], query))
    query, column = query[order], column[order]
    rank = np.arange(len(query)) - np.searchsorted(query, query)
    kept = rank < k
    query, column = query[kept], column[kept]
    return pool[query, column].reshape(count, k), rows[query, column].reshape(count, k)


def as_table(
    crop: Crop, queries: np.ndarray, rows: np.ndarray, distances: np.ndarray
) -> pl.DataFrame:
    """name, rank (from 1), neighbour, distance: one line per neighbour that exists."""
    query, rank = np.nonzero(rows >= 0)
    return pl.DataFrame(
        [
            crop.entity_ids.names(queries[query]).alias("name"),
            pl.Series("rank", rank + 1),
            crop.entity_ids.names(rows[query, rank]).alias("neighbour"),
            pl.Series("distance", distances[query, rank]),
        ]
    )


_POINTS_PER_CELL = 39
"""faiss trains cells poorly with fewer."""
_TRAIN_ROWS = 200_000
_BLOCK_ROWS = 100_000
_FILE = "cells.faiss"


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MedappsError(
            "Approximate search needs faiss, which is not installed.",
            fix="Leave out --approximate, or install it: pip install 'medapps[ann]'.",
        ) from None
    return faiss


def build_index(crop: Crop, rows: np.ndarray | None = None, *, probe: int = 32) -> Any:
    """An inverted-file index over the rows (None: all); its labels are crop rows."""
    faiss = _faiss()
    rows = np.arange(len(crop.entity_ids)) if rows is None else np.asarray(rows)
    metric = faiss.METRIC_L1 if crop.spec.norm == "l1" else faiss.METRIC_L2
    cells = max(1, min(int(4 * np.sqrt(len(rows))), len(rows) // _POINTS_PER_CELL))
    coarse = faiss.IndexFlat(crop.width, metric)
    index = faiss.IndexIVFFlat(coarse, crop.width, cells, metric)
    index.own_fields = True
    coarse.this.disown()
    rng = np.random.default_rng(0)
    enough = max(cells * _POINTS_PER_CELL, min(len(rows), _TRAIN_ROWS))
    sample = rows if len(rows) <= enough else np.sort(rng.choice(rows, enough, replace=False))
    index.train(np.ascontiguousarray(crop.rows(sample)))
    for start in range(0, len(rows), _BLOCK_ROWS):
        part = rows[start : start + _BLOCK_ROWS]
        index.add_with_ids(np.ascontiguousarray(crop.rows(part)), part.astype(np.int64))
    index.nprobe = min(probe, cells)
    return index


def nearest_in(
    index: Any, crop: Crop, queries: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """(q, k) rows and distances as `similar.nearest` gives them, from the index."""
    distance, found = index.search(np.ascontiguousarray(crop.rows(queries)), k + 1)
    # itself is moved behind the others, then cut off
    last = np.argsort((found == queries[:, None]) | (found < 0), axis=1, kind="stable")[:, :k]
    found = np.take_along_axis(found, last, 1)
    distance = np.take_along_axis(distance, last, 1)
    found[found == queries[:, None]] = -1
    distance = distance if crop.spec.norm == "l1" else np.sqrt(np.maximum(distance, 0))
    return found.astype(np.int32), np.where(found < 0, np.inf, distance).astype(np.float32)


def recall(
    index: Any, crop: Crop, rows: np.ndarray | None, k: int, *, queries: int = 100, seed: int = 0
) -> float:
    """The share of the exact k nearest that the index finds, over a sample of queries."""
    rng = np.random.default_rng(seed)
    pool = np.arange(len(crop.entity_ids)) if rows is None else np.asarray(rows)
    asked = rng.choice(pool, min(queries, len(pool)), replace=False).astype(np.int32)
    exact, _ = nearest(crop, asked, k, rows)
    found, _ = nearest_in(index, crop, asked, k)
    hits = (exact[:, :, None] == found[:, None]) & (exact[:, :, None] >= 0)  # (q, k, k)
    return float(hits.any(2).sum() / max(1, (exact >= 0).sum()))


def open_index(folder: Path, crop: Crop, rows: np.ndarray | None) -> Any:
    """The index kept in `folder`, built and kept there first when it is missing or damaged."""
    faiss = _faiss()
    try:
        read_manifest(folder, kind="index", verify_below=2**63)
    except MedappsError:
        index = build_index(crop, rows)
        with writing(folder, kind="index", provenance=REPLACE) as draft:
            faiss.write_index(index, str(draft.path(_FILE)))
    return faiss.read_index(str(folder / _FILE))
