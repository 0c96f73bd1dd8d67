"""Leakage: relations that give labels away, and held-out purchases among the triples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from medapps.graph.graph import Graph
from medapps.graph.labels import label_columns

LEAK_ACCURACY = 0.98
"""Accuracy above which a relation counts as label leakage."""
LEAST_USERS = 20
MOST_CLASSES = 1000


@dataclass(frozen=True)
class Leak:
    """A relation that predicts a label column."""

    relation: str
    column: str
    users: int
    accuracy: float
    how: str


def label_leaks(graph: Graph, labels: pl.DataFrame) -> list[Leak]:
    """Relations that predict a label column almost without error.

    Two ways: users with the same neighbour under a relation nearly always share the label (each
    user is judged by the others), or nearly all users that have the relation share one class.
    """
    user = graph.entities.ids(labels["user"])
    columns = {}
    for name in label_columns(labels.schema):
        frame = _classes(user, labels[name])
        if len(frame):
            columns[name] = np.full(len(graph.entities), -1, np.int32)
            columns[name][frame["user"].to_numpy()] = frame["label"].to_numpy()
    leaks: list[Leak] = []
    if not columns:
        return leaks
    for relation, rows in _by_relation(graph):
        name = str(graph.relations.names(np.array([relation]))[0])
        for column, label in columns.items():
            for test, how in (
                (_by_neighbour, "users with the same neighbour share it"),
                (_by_having, "nearly all its users share it"),
            ):
                found = (test(rows[:, a], rows[:, b], label) for a, b in ((0, 2), (2, 0)))
                leak = next((one for one in found if one is not None), None)
                if leak is not None:
                    leaks.append(Leak(name, column, *leak, how))
    return sorted(leaks, key=lambda leak: (leak.column, leak.relation))


def _classes(user: np.ndarray, values: pl.Series) -> pl.DataFrame:
    """(user, label) of a column; empty when it has too few or too many classes to be predicted."""
    known = pl.DataFrame({"user": user, "label": values.rank("dense").cast(pl.Int32)})
    known = known.filter(pl.col("user") >= 0).drop_nulls()
    sizes = np.bincount(known["label"].to_numpy())
    count = np.count_nonzero(sizes)
    usable = 2 <= count <= min(MOST_CLASSES, len(known) // 2)
    return known if usable and sizes.max() < LEAK_ACCURACY * len(known) else known.clear()


def _by_relation(graph: Graph) -> Iterator[tuple[int, np.ndarray]]:
    """The training triples of one relation after the other."""
    few = len(graph.relations) < 2**15
    relation = graph.train[:, 1].astype(np.int16 if few else np.int32)
    order = np.argsort(relation, kind="stable")
    ends = np.cumsum(np.bincount(relation, minlength=len(graph.relations)))
    for number, (start, stop) in enumerate(pairwise([0, *ends.tolist()])):
        if stop > start:
            yield number, graph.train[order[start:stop]]


def _by_neighbour(
    user: np.ndarray, other: np.ndarray, label: np.ndarray
) -> tuple[int, float] | None:
    """A user's label guessed as the commonest among the other users with the same neighbour.

    A guess is right where the user's class has, without this user, more votes than any other; so
    all votes of the first class of a neighbour are right, or none.
    """
    of_user = label[user]
    keys = other[of_user >= 0] * np.int64(label.max() + 1) + of_user[of_user >= 0]
    keys, votes = _runs(np.sort(keys))  # one per neighbour and class
    if not len(keys):
        return None
    neighbour = keys // (label.max() + 1)
    starts = np.flatnonzero(np.append(True, neighbour[1:] != neighbour[:-1]))
    total, first = np.add.reduceat(votes, starts), np.maximum.reduceat(votes, starts)
    group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(votes))))
    winner = votes == first[group]
    tie = np.add.reduceat(winner, starts, dtype=np.int64) > 1
    second = np.maximum.reduceat(np.where(winner, 0, votes), starts)
    second[tie] = first[tie]
    judged = total > 1
    accuracy = first[judged & (first - 1 > second)].sum() / max(1, total[judged].sum())
    if accuracy < LEAK_ACCURACY:
        return None
    seen = np.zeros(len(label), bool)
    seen[neighbour[starts[judged]]] = True
    users = len(np.unique(user[(of_user >= 0) & seen[other]]))
    return (users, float(accuracy)) if users >= LEAST_USERS else None


def _by_having(user: np.ndarray, other: np.ndarray, label: np.ndarray) -> tuple[int, float] | None:
    """A label that nearly all users of a relation share, though it is not that common."""
    has = np.zeros(len(label), bool)
    has[user] = True
    votes = np.bincount(label[has & (label >= 0)])
    users = int(votes.sum())
    if users < LEAST_USERS or votes.max() < LEAK_ACCURACY * users:
        return None
    every = np.bincount(label[label >= 0])
    # by chance all `users` would be of the commonest class with probability common ** users
    unlikely = users * np.log(every.max() / every.sum()) < np.log(1e-6)
    return (users, float(votes.max() / users)) if unlikely else None


def _runs(ascending: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct values and how often each occurs."""
    starts = np.flatnonzero(np.append(True, ascending[1:] != ascending[:-1])[: len(ascending)])
    return ascending[starts], np.diff(np.append(starts, len(ascending)))


def held_out_in_graph(graph: Graph, parted: pl.DataFrame) -> pl.DataFrame:
    """(user, item, split, relation) of held-out interactions that are training triples.

    `parted` is what `leave_one_out` returns.
    """
    held = parted.filter(pl.col("split") != "train")
    items = held.select("item").unique()
    inside = items.filter(pl.Series(graph.entities.ids(items["item"]) >= 0))
    held = held.join(inside, on="item", how="semi")
    if held.is_empty():
        return held.select("user", "item", "split", relation=pl.lit(""))
    user, item = graph.entities.ids(held["user"]), graph.entities.ids(held["item"])
    pairs = pl.DataFrame({"a": user, "b": item}).with_columns(
        held["user"], held["item"], held["split"]
    )
    pairs = pairs.filter((pl.col("a") >= 0) & (pl.col("b") >= 0))
    edges = pl.LazyFrame(graph.train, schema=["head", "relation", "tail"])
    hits = pl.concat(
        [
            edges.join(pairs.lazy(), left_on=["head", "tail"], right_on=["a", "b"]),
            edges.join(pairs.lazy(), left_on=["tail", "head"], right_on=["a", "b"]),
        ],
        how="diagonal",
    ).collect(engine="streaming")
    names = graph.relations.names(hits["relation"].to_numpy()).cast(pl.String)
    found = hits.select("user", "item", "split").with_columns(relation=names)
    return found.sort("user", "item", "relation")
