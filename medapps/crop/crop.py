"""Crop: the vectors that a device carries, by name, with all that is needed to score triples.

Made from a trained embedding or by any baseline; the tasks know nothing else. Loads with NumPy and polars
alone and maps its files into memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from medapps.arrays import open_arrays
from medapps.crop.quantize import dequantize
from medapps.crop.score import SCORES, ScoreSpec
from medapps.errors import MedappsError
from medapps.graph.ids import IdMap
from medapps.store import Manifest, read_manifest, writing

Names = pl.Series | Sequence[str] | Sequence[int] | np.ndarray
VERIFY_BELOW = 32 * 2**20
"""Crop files up to this size are hashed on every load; a lookup must not read a large file whole."""


@dataclass(frozen=True)
class Crop:
    """Entity vectors of one dimension, their names, and how to score with them."""

    entities: np.ndarray
    """(n, width): float32, float16 or int8; may be a memory map."""
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
    manifest: Manifest | None = field(default=None, compare=False, repr=False)

    @property
    def dtype(self) -> str:
        return self.entities.dtype.name

    @property
    def width(self) -> int:
        """Numbers per entity."""
        return self.entities.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the vectors, without the names."""
        parts = [self.entities, self.scale, self.relations]
        return sum(part.nbytes for part in parts if part is not None)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """float32 (k, width): the vectors of rows `ids`."""
        picked = np.asarray(self.entities[ids])
        return dequantize(picked, None if self.scale is None else np.asarray(self.scale[ids]))

    def vectors(self, names: Names) -> tuple[np.ndarray, np.ndarray]:
        """Service vectors float32 (k, width) and known bool (k,); zeros for unknown names."""
        ids = self.entity_ids.ids(names)
        known = ids >= 0
        out = np.zeros((len(ids), self.width), np.float32)
        out[known] = self.rows(ids[known])
        return out, known

    def score(self, heads: Names, relations: Names, tails: Names) -> np.ndarray:
        """float32 (k,): scores of named triples, larger is more plausible."""
        if self.relations is None or self.relation_ids is None:
            raise MedappsError(
                "This crop carries no relations, so it cannot score triples.",
                fix="Make it again with --relations.",
            )
        h, t = self._known(self.entity_ids, heads), self._known(self.entity_ids, tails)
        r = self._known(self.relation_ids, relations)
        relation = np.asarray(self.relations[r], np.float32)
        return SCORES[self.spec.scorer](self.rows(h), relation, self.rows(t), self.spec)

    @staticmethod
    def _known(ids: IdMap, names: Names) -> np.ndarray:
        found = ids.ids(names)
        if (found < 0).any():
            first = pl.Series(names)[int(np.argmax(found < 0))]
            raise MedappsError(
                f"{int((found < 0).sum())} names are not in the crop, e.g. {first!r}."
            )
        return found

    def save(
        self,
        folder: Path,
        *,
        config: dict[str, Any] | None = None,
        parents: dict[str, str] | None = None,
        force: bool = False,
    ) -> Crop:
        """Write the crop as a folder and return it memory-mapped."""
        with writing(folder, kind="crop", config=config, parents=parents, force=force) as draft:
            vectors = {"entities": self.entities}
            if self.scale is not None:
                vectors["scale"] = self.scale
            if self.relations is not None:
                vectors["relations"] = self.relations
            draft.arrays("vectors.safetensors", vectors)
            draft.arrays("users.safetensors", {"users": self.users})
            self.entity_ids.save(draft.path("entities.safetensors"))
            if self.relation_ids is not None:
                self.relation_ids.save(draft.path("relations.safetensors"))
            draft.about = crop_facts(self)
        return load_crop(folder)


def crop_facts(crop: Crop) -> dict[str, Any]:
    """What a manifest says about a crop."""
    return crop.about | {
        "dim": crop.dim,
        "method": crop.method,
        "spec": asdict(crop.spec),
        "dtype": crop.dtype,
        "rows": len(crop.entities),
    }


def load_crop(folder: Path, *, verify: bool = False) -> Crop:
    """Memory-map a saved crop; `verify` hashes its large files too."""
    folder = Path(folder)
    limit = 2**63 if verify else VERIFY_BELOW
    manifest = read_manifest(folder, kind="crop", verify_below=limit)
    vectors = open_arrays(folder / "vectors.safetensors")
    about = dict(manifest.about)
    relation_ids = folder / "relations.safetensors"
    return Crop(
        entities=vectors["entities"],
        scale=vectors.get("scale"),
        relations=vectors.get("relations"),
        entity_ids=IdMap.load(folder / "entities.safetensors"),
        relation_ids=IdMap.load(relation_ids) if relation_ids.exists() else None,
        users=open_arrays(folder / "users.safetensors")["users"],
        dim=about.pop("dim"),
        method=about.pop("method"),
        spec=ScoreSpec(**about.pop("spec")),
        about={key: value for key, value in about.items() if key not in ("dtype", "rows")},
        manifest=manifest,
    )
