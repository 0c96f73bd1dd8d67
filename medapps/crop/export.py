"""What a device gets of a crop: some rows, another number type, another form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from medapps.crop.crop import Crop, load_crop, write_crop
from medapps.crop.formats.files import VECTORS, check_format
from medapps.crop.formats.stream import BLOCK_BYTES, Outgoing
from medapps.crop.quantize import DTYPES
from medapps.errors import MedappsError
from medapps.graph.ids import IdMap
from medapps.store import NEW, Manifest, Provenance

_EXAMPLES = 5


def export_crop(source: Crop, folder: Path, **options: Any) -> Crop:
    """Write what `export_files` writes, with its options, and open it."""
    export_files(source, folder, **options)
    return load_crop(folder)


def export_files(
    source: Crop,
    folder: Path,
    provenance: Provenance = NEW,
    *,
    dtype: str = "float32",
    form: str = "safetensors",
    users_only: bool = False,
    names: pl.Series | None = None,
    relations: bool = True,
    about: dict[str, Any] | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> Manifest:
    """Stream `source` into `folder`: its users only, or the entities in `names`, or all.

    Needs memory for a few blocks and a few bytes per row, however wide `source` is.
    """
    if dtype not in DTYPES:
        raise MedappsError(f"--dtype takes {', '.join(DTYPES)}, not {dtype!r}.")
    check_format(form)
    rows = chosen_rows(source, users_only=users_only, names=names)
    outgoing = Outgoing(source, dtype, rows, relations, block_bytes)
    if not provenance.parents and source.manifest is not None:
        provenance = provenance.of(crop=source.manifest.digest)
    return write_crop(folder, outgoing, provenance, form=form, about=about)


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


def chosen_rows(
    source: Crop, *, users_only: bool = False, names: pl.Series | None = None
) -> np.ndarray | None:
    """int32, ascending: the rows to keep; None for all."""
    if users_only and names is not None:
        raise MedappsError("--users-only and --ids exclude each other.", fix="Give one of them.")
    if names is not None:
        return _listed(source.entity_ids, names)
    if not users_only:
        return None
    if not len(source.users):
        raise MedappsError(
            "This embedding knows no users, so --users-only would leave nothing.",
            fix="Leave it out, or name the entities with --ids FILE.",
        )
    return None if len(source.users) == len(source.entity_ids) else np.asarray(source.users)


def _listed(ids: IdMap, names: pl.Series) -> np.ndarray:
    """Rows of the listed names; unknown, repeated and missing ones are refused."""
    if not len(names):
        raise MedappsError("The list of ids is empty.")
    names = _typed(ids, names)
    found = ids.ids(names)
    _refuse(names.filter(pl.Series(found < 0)), "are not in the embedding")
    _refuse(names.filter(names.is_duplicated()).unique(maintain_order=True), "are listed twice")
    return np.sort(found)


def _typed(ids: IdMap, names: pl.Series) -> pl.Series:
    """The names in the type of the ids: those of a text file are strings even when ids are not."""
    if ids.dtype == pl.String:
        return names.cast(pl.String)
    if names.dtype != pl.String:
        return names
    numbers = names.str.strip_chars().cast(pl.Int64, strict=False)
    _refuse(names.filter(numbers.is_null()), "are not in the embedding, whose ids are integers")
    return numbers


def _refuse(names: pl.Series, problem: str) -> None:
    if not len(names):
        return
    some = ", ".join(repr(name) for name in names.head(_EXAMPLES).to_list())
    more = ", ..." if len(names) > _EXAMPLES else ""
    raise MedappsError(
        f"{len(names):,} ids of the list {problem}: {some}{more}.", fix="Correct the --ids file."
    )
