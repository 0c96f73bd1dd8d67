"""Graph: integer triples, their splits and their names, and the paths between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from medapps.arrays import open_arrays
from medapps.graph.ids import IdMap
from medapps.graph.known_triples import KnownTriples
from medapps.store import NEW, Manifest, Provenance, digest_of, read_manifest, usable, writing

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

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


def path_words(graph: Graph, user: pl.Series, items: pl.Series) -> list[str]:
    """One path of at most three steps from the user to each item, in words; empty where none is.

    Of several paths the one through the rarest entities is told: it says most.
    """
    start = int(graph.entities.ids(user)[0])
    goals = graph.entities.ids(items)
    if start < 0:
        return [""] * len(goals)
    links = _links(graph)
    degree = np.diff(links.indptr)
    return [
        "" if goal < 0 else _words(graph, _path(links, degree, start, int(goal))) for goal in goals
    ]


def _links(graph: Graph) -> csr_matrix:
    """Which entities are linked, in either direction."""
    from scipy.sparse import csr_matrix

    head, tail = np.asarray(graph.train[:, 0]), np.asarray(graph.train[:, 2])
    ones = np.ones(2 * len(head), bool)
    ends = np.concatenate([head, tail]), np.concatenate([tail, head])
    size = len(graph.entities)
    return csr_matrix((ones, ends), (size, size))


def _path(links: csr_matrix, degree: np.ndarray, start: int, goal: int) -> list[int]:
    near, far = links[start].indices, links[goal].indices
    if goal in near:
        return [start, goal]
    middle = np.intersect1d(near, far)
    if len(middle):
        return [start, int(middle[np.argmin(degree[middle])]), goal]
    reached = links[near]
    hit = np.isin(reached.indices, far)
    if not hit.any():
        return []
    first = np.repeat(near, np.diff(reached.indptr))[hit]
    second = reached.indices[hit]
    best = np.argmin(degree[first].astype(np.int64) * degree[second])
    return [start, int(first[best]), int(second[best]), goal]


def _words(graph: Graph, path: list[int]) -> str:
    """`user:1 -friend- user:7 -takes- item:3`."""
    if not path:
        return ""
    names = graph.entities.names(np.array(path)).cast(pl.String)
    words = [names[0]]
    for number, (a, b) in enumerate(pairwise(path)):
        h, t = graph.train[:, 0], graph.train[:, 2]
        rows = np.flatnonzero(((h == a) & (t == b)) | ((h == b) & (t == a)))
        relation = graph.relations.names(np.asarray(graph.train[rows[:1], 1]))[0]
        words += [f"-{relation}-", names[number + 1]]
    return " ".join(words)
