"""The three file formats of a crop, and how each is read back.

safetensors  vectors (entities, scale, relations), users, and an id map each for entities and
             relations; mapped into memory, nothing is read before it is used
npz          the same arrays in one uncompressed archive; mapped too
parquet      entities (id, vector, user, scale) and relations (id, vector), for other tools;
             read whole
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medapps.arrays import Blocks, open_arrays
from medapps.crop.formats import npz, parquet
from medapps.crop.formats.stream import CropStream
from medapps.errors import MedappsError
from medapps.graph.ids import IdMap
from medapps.store import Draft

VECTORS = {
    "safetensors": "vectors.safetensors",
    "parquet": "entities.parquet",
    "npz": "crop.npz",
}
"""The file that holds the vectors of entities, by format."""
FORMATS = tuple(VECTORS)


@dataclass(frozen=True)
class Stored:
    """What the files of a crop hold."""

    entities: np.ndarray
    entity_ids: IdMap
    scale: np.ndarray | None = None
    relations: np.ndarray | None = None
    relation_ids: IdMap | None = None
    users: np.ndarray | None = None
    """None when every row is a user."""


def check_format(form: str) -> None:
    """Refuse an unknown file format."""
    if form not in FORMATS:
        raise MedappsError(f"--format takes {', '.join(FORMATS)}, not {form!r}.")


def write_files(draft: Draft, crop: CropStream) -> None:
    """Write the files of a crop into the draft."""
    form = crop.form
    if form == "npz":
        npz.write_npz(draft.path(VECTORS[form]), _vectors(crop) | _names(crop))
    elif form == "parquet":
        parquet.write_entities(draft.path(VECTORS[form]), crop)
        if crop.source.relations is not None and crop.source.relation_ids is not None:
            frame = parquet.frame(crop.source.relation_ids.names(), crop.source.relations)
            draft.table("relations.parquet", frame)
    else:
        draft.arrays(VECTORS[form], _vectors(crop))
        if crop.users is not None:
            draft.arrays("users.safetensors", {"users": crop.users})
        crop.entity_ids.save(draft.path("entities.safetensors"))
        if crop.source.relation_ids is not None:
            crop.source.relation_ids.save(draft.path("relations.safetensors"))


def _vectors(crop: CropStream) -> dict[str, np.ndarray | Blocks]:
    """Entities in blocks, then the scales, which are known when the last block has passed."""
    scale = np.empty(crop.shape[0], np.float32) if crop.dtype == "int8" else None

    def pieces() -> Iterator[np.ndarray]:
        for part, vectors, steps in crop.blocks():
            if scale is not None:
                scale[part] = steps
            yield vectors

    arrays: dict[str, np.ndarray | Blocks] = {"entities": Blocks(crop.shape, crop.dtype, pieces())}
    if scale is not None:
        arrays["scale"] = scale
    if crop.source.relations is not None:
        arrays["relations"] = np.asarray(crop.source.relations, np.float32)
    return arrays


def _names(crop: CropStream) -> dict[str, np.ndarray | Blocks]:
    arrays: dict[str, np.ndarray | Blocks] = {}
    if crop.users is not None:
        arrays["users"] = crop.users
    for kind, ids in (("entity", crop.entity_ids), ("relation", crop.source.relation_ids)):
        if ids is not None:
            arrays |= {f"{kind}_{key}": array for key, array in ids.arrays().items()}
    return arrays


def read_files(folder: Path, listed: Set[str], form: str, dtype: str) -> Stored:
    """Open those files of a crop that its manifest lists; its vectors are of `dtype`."""
    if form == "parquet":
        ids, vectors, scale, users = parquet.read_entities(folder / VECTORS[form], dtype)
        others = "relations.parquet"
        relation_ids, relations = (
            parquet.read_relations(folder / others) if others in listed else (None, None)
        )
        return Stored(vectors, ids, scale, relations, relation_ids, users)
    if form == "npz":
        arrays = npz.open_npz(folder / VECTORS[form])
        return _stored(arrays, _ids(arrays, "entity"), _ids(arrays, "relation"))
    arrays = open_arrays(folder / VECTORS[form])
    if "users.safetensors" in listed:
        arrays["users"] = open_arrays(folder / "users.safetensors")["users"]
    names = "relations.safetensors"
    relation_map = IdMap.load(folder / names) if names in listed else None
    return _stored(arrays, IdMap.load(folder / "entities.safetensors"), relation_map)


def _stored(arrays: Mapping[str, np.ndarray], ids: IdMap | None, others: IdMap | None) -> Stored:
    if "entities" not in arrays or ids is None:
        raise MedappsError("The crop's files hold no entities.", fix="Make it again with --force.")
    rest = {key: arrays.get(key) for key in ("scale", "relations", "users")}
    return Stored(entities=arrays["entities"], entity_ids=ids, relation_ids=others, **rest)


def _ids(arrays: Mapping[str, np.ndarray], kind: str) -> IdMap | None:
    parts = [arrays.get(f"{kind}_{key}") for key in ("integers", "offsets", "text")]
    return None if all(part is None for part in parts) else IdMap(*parts)
