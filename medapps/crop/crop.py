"""Crop: the vectors that a device carries, by name, with all that is needed to score triples.

Made from a trained embedding or by any baseline; the tasks know nothing else. Loads with NumPy and
polars alone and maps its files into memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from medapps.arrays import forget
from medapps.crop.formats import FORMATS, CropStream, read_files, write_files
from medapps.crop.idlist import rows_of
from medapps.crop.quantize import dequantize
from medapps.errors import MedappsError
from medapps.graph.ids import IdMap
from medapps.model.rule import ScoreSpec
from medapps.model.rules import RULES
from medapps.store import NEW, Manifest, Provenance, read_manifest, usable, writing

Names = pl.Series | Sequence[str] | Sequence[int] | np.ndarray
VERIFY_BELOW = 32 * 2**20
"""Files up to this size are hashed on every load, larger ones on the first only."""

_ROWS = 65_536
"""Rows that are looked up at a time."""


@dataclass(frozen=True, eq=False)
class Crop:
    """Entity vectors of one dimension, their names, and how to score with them."""

    entities: np.ndarray
    """(n, width): float32, float16, int8, or bit patterns of bfloat16 in uint16; may be a memory
    map.
    """
    entity_ids: IdMap
    dim: int
    method: str
    spec: ScoreSpec
    scale: np.ndarray | None = None
    """float32 (n,): multiplies int8 rows."""
    relations: np.ndarray | None = None
    """float32 (m, relation width), or None when the device does not score triples."""
    relation_ids: IdMap | None = None
    users: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    """int32, ascending: the rows that are users."""
    about: dict[str, Any] = field(default_factory=dict)
    """JSON-able origin: graph digest, dataset, run id, trained dims, train_seconds, metrics, ..."""
    manifest: Manifest | None = field(default=None, repr=False)

    @property
    def dtype(self) -> str:
        name = self.entities.dtype.name
        return "bfloat16" if name == "uint16" else name

    @property
    def width(self) -> int:
        """Numbers per entity."""
        return self.entities.shape[1]

    @property
    def id_type(self) -> type[pl.DataType]:
        """The polars type of the names."""
        return self.entity_ids.dtype

    @property
    def dims(self) -> tuple[int, ...]:
        """Its own size, the only one that it was trained for, as every baseline is."""
        return (self.dim,)

    @property
    def specs(self) -> tuple[ScoreSpec, ...]:
        return (self.spec,)

    def crop(self, dim: int) -> Crop:
        assert dim == self.dim, (dim, self.dim)
        return self

    @property
    def nbytes(self) -> int:
        """Bytes of the vectors, without the names."""
        parts = [self.entities, self.scale, self.relations]
        return sum(part.nbytes for part in parts if part is not None)

    def rows(self, ids: np.ndarray | slice) -> np.ndarray:
        """float32 (k, width): the vectors of rows `ids`."""
        picked = np.asarray(self.entities[ids])
        return dequantize(picked, None if self.scale is None else np.asarray(self.scale[ids]))

    def vectors(self, names: Names) -> tuple[np.ndarray, np.ndarray]:
        """Service vectors float32 (k, width) and known bool (k,); zeros for unknown names."""
        ids = self.entity_ids.ids(names)
        known = ids >= 0
        out = np.zeros((len(ids), self.width), np.float32)
        places = np.flatnonzero(known)
        for start in range(0, len(places), _ROWS):
            part = places[start : start + _ROWS]
            out[part] = self.rows(ids[part])
            if len(places) > _ROWS:  # so many pages of a mapped table need not stay
                forget(self.entities)
        return out, known

    def score(self, heads: Names, relations: Names, tails: Names) -> np.ndarray:
        """float32 (k,): scores of named triples, larger is more plausible."""
        if self.relations is None or self.relation_ids is None:
            raise MedappsError(
                "This crop carries no relations, so it cannot score triples.",
                fix="Make it again with --relations.",
            )
        h, t = self.rows_of(heads), self.rows_of(tails)
        some = np.arange(min(3, len(self.relation_ids)))
        relation = self.relations[rows_of(self.relation_ids, pl.Series(relations), some)]
        rule = RULES[self.spec.scorer]
        return rule.score(self.rows(h), np.asarray(relation, np.float32), self.rows(t), self.spec)

    def rows_of(self, names: Names) -> np.ndarray:
        """int32 (k,): the rows of entities that must all be known."""
        return rows_of(self.entity_ids, pl.Series(names), np.asarray(self.users[:3]))

    def save(
        self, folder: Path, provenance: Provenance = NEW, *, form: str = "safetensors"
    ) -> Crop:
        """Write the crop as a folder and return it opened again."""
        crop = CropStream(self, "float32" if self.dtype == "bfloat16" else self.dtype, form)
        write_crop(folder, crop, provenance)
        return load_crop(folder)


def write_crop(folder: Path, crop: CropStream, provenance: Provenance = NEW) -> Manifest:
    """Stream a crop into `folder`, whole or not at all."""
    if crop.form not in FORMATS:
        raise MedappsError(f"--format takes {', '.join(FORMATS)}, not {crop.form!r}.")
    with writing(folder, kind="crop", provenance=provenance) as draft:
        write_files(draft, crop)
        origin = crop.source.about
        measured = {key: value for key, value in origin.items() if key.endswith("_seconds")}
        draft.metrics = measured  # beside the digest: equal crops stay equal
        kept = {key: value for key, value in origin.items() if key not in measured}
        draft.about = kept | crop_facts(crop)
    return read_manifest(folder, kind="crop", verify_below=0)


def crop_facts(crop: CropStream) -> dict[str, Any]:
    """What a manifest says about a crop, so that a device can use it."""
    return {
        "dim": crop.source.dim,
        "method": crop.source.method,
        "spec": asdict(crop.source.spec),
        "dtype": crop.dtype,
        "format": crop.form,
        "rows": crop.shape[0],
        "width": crop.shape[1],
        "users": crop.shape[0] if crop.users is None else len(crop.users),
        "relations": 0 if crop.source.relations is None else len(crop.source.relations),
    }


@usable("crop")
def load_crop(folder: Path, *, verify: bool = False) -> Crop:
    """Memory-map a saved crop; `verify` hashes its large files again."""
    folder = Path(folder)
    limit = 2**63 if verify else VERIFY_BELOW
    manifest = read_manifest(folder, kind="crop", verify_below=limit)
    about = dict(manifest.about) | manifest.metrics
    try:
        facts = {key: about.pop(key) for key in _FACTS}
        spec = ScoreSpec(**facts["spec"])
    except (KeyError, TypeError) as error:
        raise _unusable(folder, f"its manifest lacks or misnames {error}") from error
    if facts["format"] not in FORMATS:
        raise _unusable(folder, f"this medapps knows no format {facts['format']!r}")
    if not all(type(facts[key]) is int for key in ("dim", "rows", "width", "users", "relations")):
        raise _unusable(folder, "its manifest states a size that is no whole number")
    for name in manifest.files:
        if (folder / name).resolve().parent != folder.resolve():
            raise _unusable(folder, f"{name} leads out of its folder")
    stored = read_files(folder, set(manifest.files), facts["format"], facts["dtype"])
    entities, names = stored["entities"], len(stored["entity_ids"])
    if (shape := entities.shape) != (facts["rows"], facts["width"]) or names != facts["rows"]:
        raise _unusable(folder, f"{shape} numbers and {names} names do not fit its manifest")
    if entities.dtype.name != facts["dtype"]:
        raise _unusable(folder, f"it holds {entities.dtype} instead of {facts['dtype']}")
    if stored["users"] is None:
        stored["users"] = np.arange(names, dtype=np.int32)
    origin = {"dim": facts["dim"], "method": facts["method"], "about": about}
    return Crop(**stored, **origin, spec=spec, manifest=manifest)


_FACTS = ("dim", "method", "spec", "dtype", "format", "rows", "width", "users", "relations")


def _unusable(folder: Path, why: str) -> MedappsError:
    return MedappsError(
        f"The crop {folder} cannot be used: {why}.", fix="Make it again with --force."
    )
