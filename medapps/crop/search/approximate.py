"""An approximate index for millions of vectors (the `ann` extra: faiss), measured against exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from medapps.crop.crop import Crop
from medapps.crop.search.similar import nearest
from medapps.errors import MedappsError
from medapps.store import REPLACE, read_manifest, writing

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
