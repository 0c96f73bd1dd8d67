"""What a device gets of a crop: some rows, another number type, another file format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from medapps.crop.crop import Crop, load_crop, write_crop
from medapps.crop.formats import BLOCK_BYTES, VECTORS, CropStream
from medapps.crop.idlist import some_of, typed
from medapps.crop.quantize import DTYPES
from medapps.errors import MedappsError
from medapps.graph.ids import IdMap, fence_bytes
from medapps.store import NEW, Manifest, Provenance

_OVERHEAD = 4 * 2**10
"""Bytes of headers and the manifest, rounded up, without what the crop says about itself."""


@dataclass(frozen=True)
class Export:
    """What is written of a crop, and how: its users only, the entities in `names`, or all."""

    dtype: str = "float32"
    form: str = "safetensors"
    users_only: bool = False
    names: pl.Series | None = None
    relations: bool = True
    about: Mapping[str, Any] = field(default_factory=dict)
    """Added to what the crop says about itself."""
    block_bytes: int = BLOCK_BYTES


WHOLE = Export()


def export_crop(
    source: Crop, folder: Path, what: Export = WHOLE, provenance: Provenance = NEW
) -> Crop:
    """Write what is wanted of a crop, and open it."""
    export_files(source, folder, what, provenance)
    return load_crop(folder)


def export_files(
    source: Crop, folder: Path, what: Export = WHOLE, provenance: Provenance = NEW
) -> Manifest:
    """Stream what is wanted of `source` into `folder`.

    Needs memory for a few blocks and a few bytes per row, however wide `source` is.
    """
    if what.dtype not in DTYPES:
        raise MedappsError(f"--dtype takes {', '.join(DTYPES)}, not {what.dtype!r}.")
    if not provenance.parents and source.manifest is not None:
        provenance = provenance.of(crop=source.manifest.digest)
    kept = replace(source, about=source.about | dict(what.about))
    kept = kept if what.relations else without_relations(kept)
    stream = CropStream(kept, what.dtype, what.form, chosen_rows(kept, what), what.block_bytes)
    return write_crop(folder, stream, provenance)


def export_facts(manifest: Manifest) -> dict[str, Any]:
    """What a command reports about a crop on disk; sha256 is that of its file of vectors."""
    about = manifest.about
    file = VECTORS[about["format"]]
    kept = ("dim", "dtype", "format", "method", "rows", "users", "relations")
    return {
        **{key: about[key] for key in kept},
        "tier": about.get("tier"),
        "untrained": about.get("untrained", False),
        "bytes": manifest.bytes,
        "bytes_per_row": round(manifest.bytes / max(1, about["rows"]), 2),
        "file": file,
        "sha256": manifest.files[file]["sha256"],
    }


def chosen_rows(source: Crop, what: Export) -> np.ndarray | None:
    """int32, ascending: the rows to keep; None for all."""
    if what.users_only and what.names is not None:
        raise MedappsError("--users-only and --ids exclude each other.", fix="Give one of them.")
    if what.names is not None:
        return _listed(source.entity_ids, what.names)
    if not what.users_only:
        return None
    if not len(source.users):
        raise MedappsError(
            "This embedding knows no users, so --users-only would leave nothing.",
            fix="Leave it out, or name the entities with --ids FILE.",
        )
    return None if len(source.users) == len(source.entity_ids) else np.asarray(source.users)


def _listed(ids: IdMap, names: pl.Series) -> np.ndarray:
    """Rows of the listed names; unknown and repeated ones are refused."""
    if not len(names):
        raise MedappsError("The list of ids is empty.")
    found = ids.ids(typed(names, ids.dtype))
    rows = pl.Series(found)
    twice = names.filter(rows.is_duplicated()).unique(maintain_order=True)
    for wrong, problem in (
        (names.filter(rows < 0), "are not in the embedding"),
        (twice, "are listed twice"),
    ):
        if len(wrong):
            raise MedappsError(
                f"{len(wrong):,} ids of the list {problem}: {some_of(wrong)}.",
                fix="Correct the --ids file.",
            )
    return np.sort(found)


def without_relations(crop: Crop) -> Crop:
    """The crop of a device that does not score triples."""
    return replace(crop, relations=None, relation_ids=None)


def crop_bytes(source: Crop, dtype: str, rows: np.ndarray | None = None) -> int:
    """Upper bound of the bytes of `source` exported as safetensors or npz, manifest included."""
    count = len(source.entity_ids) if rows is None else len(rows)
    size = _OVERHEAD + len(json.dumps(source.about)) + _name_bytes(source.entity_ids, rows)
    size += count * (source.width * np.dtype(dtype).itemsize + (4 if dtype == "int8" else 0))
    if rows is None and len(source.users) < count:
        size += 4 * len(source.users)
    if source.relations is not None and source.relation_ids is not None:
        size += source.relations.size * 4
        size += sum(part.nbytes for part in source.relation_ids.arrays().values())
    return size


def _name_bytes(ids: IdMap, rows: np.ndarray | None) -> int:
    count = len(ids) if rows is None else len(rows)
    order = 0 if ids.order is None else 4 * count
    if ids.offsets is None:
        return 8 * count + order
    offsets = np.asarray(ids.offsets)
    lengths = np.diff(offsets) if rows is None else offsets[rows + 1] - offsets[rows]
    return order + int(lengths.sum()) + 8 * (len(lengths) + 1) + fence_bytes(lengths)
