"""Embedding: the trained tables, and how they are cut to a prefix of any size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from medapps.arrays import Blocks, Hole, bfloat16, open_arrays
from medapps.crop.crop import Crop
from medapps.crop.quantize import refuse_broken
from medapps.errors import MedappsError
from medapps.graph.ids import IdMap
from medapps.model.rule import ScoreSpec
from medapps.model.rules import RULES
from medapps.store import NEW, Draft, Manifest, Provenance, read_manifest, usable, writing


@dataclass(frozen=True)
class Embedding:
    """Entity and relation tables whose prefixes of length `dims` are models of their own."""

    entities: np.ndarray
    """(n, width): float32, or bit patterns of bfloat16 in uint16; may be a memory map."""
    relations: np.ndarray
    """float32 (m, relation width)."""
    dims: tuple[int, ...]
    specs: tuple[ScoreSpec, ...]
    """How each prefix scores."""
    entity_ids: IdMap
    relation_ids: IdMap
    users: np.ndarray
    """int32, ascending: the rows that are users."""
    graph_digest: str = ""
    method: str = "med"
    metrics: dict[str, float] = field(default_factory=dict)
    """Loss, speed, memory and validation figures of the training."""
    about: dict[str, Any] = field(default_factory=dict)
    """JSON-able origin: dataset name and folder, seed, config."""
    manifest: Manifest | None = field(default=None, compare=False, repr=False)

    @property
    def scorer(self) -> str:
        return self.specs[-1].scorer

    def crop(self, dim: int) -> Crop:
        """The sub-model of size `dim`: views of the first coordinates, nothing copied."""
        if dim not in self.dims:
            problem, near = untrained(dim, self.dims)
            raise MedappsError(problem, fix=f"Use --dim {near}, or train again with --dims.")
        entity, relation, _ = RULES[self.scorer].REALS
        origin = {
            "graph": self.graph_digest,
            "embedding": self.manifest.digest if self.manifest else "",
            "trained_dims": list(self.dims),
            "train_seconds": self.metrics.get("train_seconds", 0.0),
        }
        return Crop(
            entities=self.entities[:, : dim * entity],
            entity_ids=self.entity_ids,
            dim=dim,
            method=self.method,
            spec=self.specs[self.dims.index(dim)],
            relations=self.relations[:, : dim * relation],
            relation_ids=self.relation_ids,
            users=self.users,
            about=self.about | origin,
        )

    def save(self, folder: Path, provenance: Provenance = NEW) -> Embedding:
        """Write the embedding as a folder and return it memory-mapped."""
        self.refuse_broken()
        provenance = provenance.of(graph=self.graph_digest)
        with writing(folder, kind="embedding", provenance=provenance) as draft:
            bits = self.entities.dtype == np.uint16
            self.write(draft, bfloat16(self.entities) if bits else self.entities)
        return Embedding.load(folder)

    def refuse_broken(self, first: int = 0) -> None:
        """Refuse tables that are not finite; `first` is the id of the first row of entities."""
        entities, relations = self.entity_ids, self.relation_ids
        refuse_broken(
            self.entities, lambda row: entities.names(np.array([first + row]))[0], "entity "
        )
        refuse_broken(self.relations, lambda row: relations.names(np.array([row]))[0], "relation ")

    def write(self, draft: Draft, entities: np.ndarray | Blocks | Hole) -> None:
        """Everything into a draft, with these entities or a place for them."""
        tables = {"entities": entities, "relations": self.relations}
        draft.arrays("vectors.safetensors", tables)
        draft.arrays("users.safetensors", {"users": self.users})
        self.entity_ids.save(draft.path("entities.safetensors"))
        self.relation_ids.save(draft.path("relations.safetensors"))
        draft.about = self.about | {
            "dims": list(self.dims),
            "specs": [asdict(spec) for spec in self.specs],
            "graph_digest": self.graph_digest,
            "method": self.method,
        }
        draft.metrics = self.metrics

    @classmethod
    @usable("embedding")
    def load(cls, folder: Path, *, verify: bool = False) -> Embedding:
        """Memory-map a saved embedding; `verify` hashes large files too."""
        folder = Path(folder)
        manifest = read_manifest(
            folder, kind="embedding", **({"verify_below": 2**63} if verify else {})
        )
        about = dict(manifest.about)
        vectors = open_arrays(folder / "vectors.safetensors")
        return cls(
            entities=vectors["entities"],
            relations=vectors["relations"],
            dims=tuple(about.pop("dims")),
            specs=tuple(ScoreSpec(**spec) for spec in about.pop("specs")),
            entity_ids=IdMap.load(folder / "entities.safetensors"),
            relation_ids=IdMap.load(folder / "relations.safetensors"),
            users=open_arrays(folder / "users.safetensors")["users"],
            graph_digest=about.pop("graph_digest"),
            method=about.pop("method"),
            metrics=manifest.metrics,
            about=about,
            manifest=manifest,
        )


def cut(
    embedding: Embedding | Crop, dim: int, *, allow_untrained: bool = False
) -> tuple[Crop, str | None]:
    """The crop of size `dim`, and a warning when that size was not trained."""
    warning = check_dim(dim, embedding.dims, allow_untrained=allow_untrained)
    if warning is None:
        return embedding.crop(dim), None
    larger = embedding.crop(min(d for d in embedding.dims if d > dim))
    relations = larger.relations
    if relations is not None:
        relations = relations[:, : relations.shape[1] // larger.dim * dim]
    narrow = replace(
        larger,
        entities=larger.entities[:, : larger.width // larger.dim * dim],
        relations=relations,
        dim=dim,
        spec=between(dim, embedding.dims, embedding.specs),
        about=larger.about | {"untrained": True},
        manifest=None,
    )
    return narrow, warning


def check_dim(dim: int, trained: Sequence[int], *, allow_untrained: bool = False) -> str | None:
    """Refuse a dim that was not trained, naming the nearest ones; a warning when it is allowed."""
    if dim in trained:
        return None
    problem, nearest = untrained(dim, trained)
    if not 1 <= dim <= max(trained):
        raise MedappsError(problem, fix=f"Use --dim {nearest}.")
    if not allow_untrained:
        raise MedappsError(
            problem,
            fix=f"Use --dim {nearest}, or --allow-untrained to take the first {dim} "
            "coordinates all the same.",
        )
    return f"{problem} Its quality was never trained for nor measured."


def untrained(dim: int, trained: Sequence[int]) -> tuple[str, int]:
    """The sentence that names the trained dims and those next to `dim`; and the nearest."""
    known = sorted(trained)
    beside = [d for d in known if d < dim][-1:] + [d for d in known if d > dim][:1]
    problem = (
        f"dim {dim} was not trained; trained are {', '.join(map(str, known))}, "
        f"nearest {' and '.join(map(str, beside))}."
    )
    return problem, min(beside, key=lambda d: abs(d - dim))


def between(dim: int, dims: Sequence[int], specs: Sequence[ScoreSpec]) -> ScoreSpec:
    """The scale and margin of a dim between trained ones.

    Linear in log(dim); log(scale) so, because c_i is a power of d_n / d_i.
    """
    x = [math.log(d) for d in dims]
    scale = math.exp(np.interp(math.log(dim), x, [math.log(spec.scale) for spec in specs]))
    margin = float(np.interp(math.log(dim), x, [spec.margin for spec in specs]))
    return replace(specs[0], scale=scale, margin=margin)
