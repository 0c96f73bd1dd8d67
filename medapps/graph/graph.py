"""Graph: integer triples, their splits and their names."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from medapps.arrays import open_arrays
from medapps.graph.ids import IdMap
from medapps.graph.known_triples import KnownTriples
from medapps.store import NEW, Manifest, Provenance, digest_of, read_manifest, usable, writing

__all__ = ["Graph", "KnownTriples"]
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Graph:
    """A knowledge graph. Triples are int32 (n, 3): head, relation, tail."""

    entities: IdMap
    relations: IdMap
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    users: np.ndarray
    """int32 (u,), ascending: the entities that are users."""
    name: str = "graph"
    source: str = ""
    """The dataset folder that it was read from; labels and interactions stand beside it."""
    digest: str = ""
    notes: dict[str, int] = field(default_factory=dict)
    """What reading changed: duplicates, self_loops, interactions added, ..."""
    manifest: Manifest | None = field(default=None, compare=False, repr=False)

    def save(self, folder: Path, provenance: Provenance = NEW) -> Graph:
        """Write the graph and return it with its digest."""
        with writing(folder, kind="graph", provenance=provenance) as draft:
            draft.arrays("triples.safetensors", {split: getattr(self, split) for split in SPLITS})
            draft.arrays("users.safetensors", {"users": self.users})
            self.entities.save(draft.path("entities.safetensors"))
            self.relations.save(draft.path("relations.safetensors"))
            draft.about = {
                "name": self.name,
                "source": self.source,
                "notes": self.notes,
                **self.counts(),
            }
        return Graph.load(folder)

    @classmethod
    @usable("graph")
    def load(cls, folder: Path) -> Graph:
        """Memory-map a saved graph."""
        folder = Path(folder)
        manifest = read_manifest(folder, kind="graph")
        triples = open_arrays(folder / "triples.safetensors")
        return cls(
            entities=IdMap.load(folder / "entities.safetensors"),
            relations=IdMap.load(folder / "relations.safetensors"),
            users=open_arrays(folder / "users.safetensors")["users"],
            name=manifest.about["name"],
            source=manifest.about["source"],
            digest=content_digest(manifest),
            notes=manifest.about.get("notes", {}),
            manifest=manifest,
            **triples,
        )

    def counts(self) -> dict[str, int]:
        """The numbers that describe its size."""
        return {
            "entities": len(self.entities),
            "relations": len(self.relations),
            "triples": len(self.train),
            "valid": len(self.valid),
            "test": len(self.test),
            "users": len(self.users),
        }

    @cached_property
    def known(self) -> KnownTriples:
        """Every triple of all splits, indexed for filtering."""
        parts = [part for part in (self.train, self.valid, self.test) if len(part)]
        triples = np.concatenate(parts) if len(parts) > 1 else self.train
        return KnownTriples.of(triples, len(self.entities))


def content_digest(manifest: Manifest) -> str:
    """Digest of what a graph holds, wherever its source folder lies."""
    return digest_of({name: entry["sha256"] for name, entry in manifest.files.items()})
