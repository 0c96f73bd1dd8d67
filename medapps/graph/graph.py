"""Graph: integer triples, their splits and their names."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from medapps.arrays import open_arrays
from medapps.graph.ids import IdMap
from medapps.store import Manifest, digest_of, read_manifest, writing

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

    def save(
        self, folder: Path, *, config: dict[str, Any] | None = None, force: bool = False
    ) -> Graph:
        """Write the graph and return it with its digest."""
        with writing(folder, kind="graph", config=config, force=force) as draft:
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
        return KnownTriples.of(
            np.concatenate([self.train, self.valid, self.test]), len(self.entities)
        )

    @cached_property
    def known_train(self) -> KnownTriples:
        """The training triples, indexed for filtering sampled negatives."""
        return KnownTriples.of(self.train, len(self.entities))


def content_digest(manifest: Manifest) -> str:
    """Digest of what a graph holds, wherever its source folder lies."""
    return digest_of({name: entry["sha256"] for name, entry in manifest.files.items()})


@dataclass(frozen=True)
class KnownTriples:
    """Answers "which tails does (h, r) have, which heads does (r, t) have" from sorted arrays."""

    tail_keys: np.ndarray
    """int64 (n,), ascending: (relation * entities + head) of every triple."""
    tails: np.ndarray
    """int32 (n,): the tails in the order of `tail_keys`, ascending within a key."""
    head_keys: np.ndarray
    heads: np.ndarray
    entities: int

    @classmethod
    def of(cls, triples: np.ndarray, entities: int) -> KnownTriples:
        head, relation, tail = (triples[:, i] for i in range(3))
        by_head = relation.astype(np.int64) * entities + head
        by_tail = relation.astype(np.int64) * entities + tail
        order = np.lexsort((tail, by_head))
        back = np.lexsort((head, by_tail))
        return cls(by_head[order], tail[order], by_tail[back], head[back], entities)

    def spans(
        self, entity: np.ndarray, relation: np.ndarray, side: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(answers, starts, stops): the known answers of query i are answers[starts[i]:stops[i]].

        `side` is "tail" when (head, relation) is given and tails are asked, else "head".
        """
        keys = self.tail_keys if side == "tail" else self.head_keys
        wanted = np.asarray(relation, np.int64) * self.entities + entity
        answers = self.tails if side == "tail" else self.heads
        starts = np.searchsorted(keys, wanted, "left")
        return answers, starts, np.searchsorted(keys, wanted, "right")

    def pairs(
        self, entity: np.ndarray, relation: np.ndarray, side: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """(query, answer): every known answer of every query, flat."""
        answers, starts, stops = self.spans(entity, relation, side)
        lengths = stops - starts
        query = np.repeat(np.arange(len(starts)), lengths)
        first = np.repeat(starts - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
        return query, answers[np.arange(len(query)) + first]
