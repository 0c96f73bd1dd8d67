"""Grow a graph: new triples come in, ids of old entities and relations stay as they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from medapps.errors import MedappsError
from medapps.graph.config import GraphConfig
from medapps.graph.graph import SPLITS, Graph
from medapps.graph.ids import IdMap
from medapps.graph.read import graph_files, named_users, read_graph
from medapps.graph.split import COLD_TEST, COLD_VALID, WITHHELD, PurchaseSplit


def grow_graph(
    old: Graph,
    path: str | Path,
    config: GraphConfig | None = None,
    *,
    purchases: PurchaseSplit | None = None,
) -> Graph:
    """The graph with the triples of a file or folder beside its own; new names are appended.

    `config` is by default that of the old graph. Training purchases of `purchases` become triples
    of the relation `takes`. `notes` says how many entities, relations and triples are new.
    """
    config = config or config_of(old)
    beside = config if purchases is not None else config.model_copy(update={"interactions": "off"})
    new = read_graph(path, beside, purchases)
    _check_types(old, new, graph_files(Path(path))["train"])
    grown = merged(old, new)
    buyers = None if purchases is None else purchases.users.names()
    if len(old.users) == len(old.entities):
        users = np.arange(len(grown.entities), dtype=np.int32)
    else:
        found = named_users(grown.entities, Path(new.source), config.user_prefix, buyers)
        users = np.union1d(old.users, found).astype(np.int32)
    left = "interactions_left_out"
    notes = grown.notes | ({left: new.notes[left]} if left in new.notes else {})
    return replace(grown, users=users, notes=notes)


def config_of(graph: Graph) -> GraphConfig:
    """How a graph was read."""
    return GraphConfig(**graph.manifest.config) if graph.manifest else GraphConfig()


def merged(old: Graph, new: Graph) -> Graph:
    """Both graphs as one: what only `new` names is appended, a triple that is known stays once."""
    entities, ends = _together(old.entities, new.entities)
    relations, kinds = _together(old.relations, new.relations)

    def keys(rows: np.ndarray) -> np.ndarray:
        head, relation, tail = (rows[:, i].astype(np.int64) for i in range(3))
        return (head * len(relations) + relation) * len(entities) + tail

    known = np.concatenate([keys(getattr(old, split)) for split in SPLITS])
    parts = {}
    for split in SPLITS:
        rows = np.asarray(getattr(new, split))
        rows = np.stack([ends[rows[:, 0]], kinds[rows[:, 1]], ends[rows[:, 2]]], axis=1)
        rows = rows[~np.isin(keys(rows), known)]
        parts[split] = np.concatenate([getattr(old, split), rows.astype(np.int32)])
    notes = old.notes | {
        "new_entities": len(entities) - len(old.entities),
        "new_relations": len(relations) - len(old.relations),
        "new_triples": len(parts["train"]) - len(old.train),
    }
    made = replace(old, entities=entities, relations=relations, notes=notes)
    return replace(made, digest="", manifest=None, **parts)  # type: ignore[arg-type]


def _together(old: IdMap, new: IdMap) -> tuple[IdMap, np.ndarray]:
    """The old map with what is new appended, and the ids in it of the names of `new`."""
    names = new.names().cast(old.dtype)
    both = old.appended(names)
    return both, both.ids(names)


def _check_types(old: Graph, new: Graph, file: Path) -> None:
    """Refuse ids of another type; numbers of a text file may be strings."""
    pairs = (old.entities, new.entities), (old.relations, new.relations)
    for mine, its in pairs:
        text = file.suffix != ".parquet" and mine.dtype == pl.String
        if mine.dtype != its.dtype and not text:
            raise MedappsError(
                f"Integer ids are mixed with string ids: the graph has {mine.dtype} and {file} has "
                f"{its.dtype} ids.",
                fix="Convert the columns to the type of the graph.",
            )


def additions(old: PurchaseSplit, new: PurchaseSplit) -> PurchaseSplit:
    """Those of the new purchases that are not in the old split; cold users stay cold."""
    user, item = (
        mine.ids(theirs.names())[new.pairs[:, at]]
        for at, (mine, theirs) in enumerate(((old.users, new.users), (old.items, new.items)))
    )
    width = np.int64(len(old.items))
    known = np.isin(user * width + item, old.pairs[:, 0] * width + old.pairs[:, 1])
    fresh = ~(known & (user >= 0) & (item >= 0))
    cold = np.zeros(len(old.users) + 1, bool)  # the last one stands for strangers
    cold[old.pairs[np.isin(old.part, (COLD_VALID, COLD_TEST, WITHHELD)), 0]] = True
    part = np.where(cold[user], WITHHELD, new.part).astype(new.part.dtype)
    notes = new.notes | {"known_rows": int((~fresh).sum())}
    return replace(new, pairs=new.pairs[fresh], part=part[fresh], notes=notes)


def joined(old: PurchaseSplit, new: PurchaseSplit) -> PurchaseSplit:
    """Both as one split, whose users and items are in ascending order again."""
    users, items = (
        IdMap.of(pl.concat([mine.names(), theirs.names()]))
        for mine, theirs in ((old.users, new.users), (old.items, new.items))
    )
    pairs = np.concatenate(
        [
            np.stack(
                [
                    users.ids(s.users.names())[s.pairs[:, 0]],
                    items.ids(s.items.names())[s.pairs[:, 1]],
                ],
                axis=1,
            )
            for s in (old, new)
        ]
    )
    rows = np.argsort(pairs[:, 0], kind="stable")  # later purchases of a user stay later
    part = np.concatenate([old.part, new.part])[rows]
    return PurchaseSplit(users, items, pairs[rows], part, old.notes)
