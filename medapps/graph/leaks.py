"""What a graph must not tell: the labels it will be asked for, and the purchases of the test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from medapps.graph.graph import Graph
from medapps.graph.split import leave_one_out

SURE = 0.98
"""A relation that tells a label this often tells it; friends of a kind do not come near."""
LEAST_USERS = 20
MOST_CLASSES = 1000
_AT_ONCE = 5_000_000


@dataclass(frozen=True)
class Leak:
    """A relation that gives something away."""

    relation: str
    column: str
    users: int
    accuracy: float
    how: str


def label_leaks(graph: Graph, labels: pl.DataFrame) -> list[Leak]:
    """Relations from which a label column can be read off.

    Two ways: users with the same neighbour under a relation nearly always share the label (each
    user is judged by the others), or nearly all users that have the relation share one class.
    """
    user = graph.entities.ids(labels["user"])
    classes = {
        name: frame for name in labels.columns[1:] if len(frame := _classes(user, labels[name]))
    }
    leaks: list[Leak] = []
    for links in _links(graph):
        for column, frame in classes.items():
            known = links.join(frame, on="user")
            common = float(np.bincount(frame["label"].to_numpy()).max() / len(frame))
            leaks += _by_neighbour(known, graph, column) + _by_having(known, graph, column, common)
    return sorted(leaks, key=lambda leak: (leak.column, leak.relation))


def _classes(user: np.ndarray, values: pl.Series) -> pl.DataFrame:
    """(user, label) of a column that can be told from something else; empty when it cannot."""
    frame = pl.DataFrame(schema={"user": pl.Int32, "label": pl.Int32})
    if values.dtype.is_float() or values.dtype.is_nested():
        return frame
    known = pl.DataFrame({"user": user, "label": values.rank("dense").cast(pl.Int32)})
    known = known.filter(pl.col("user") >= 0).drop_nulls()
    sizes = np.bincount(known["label"].to_numpy())
    count = np.count_nonzero(sizes)
    usable = 2 <= count <= min(MOST_CLASSES, len(known) // 2) and sizes.max() < SURE * len(known)
    return known if usable else frame


def _links(graph: Graph) -> Iterator[pl.DataFrame]:
    """(user, relation, direction, neighbour) of all training triples, some relations at once."""
    relation = graph.train[:, 1]
    batch = np.cumsum(np.bincount(relation, minlength=len(graph.relations))) // _AT_ONCE
    for number in np.unique(batch):
        rows = graph.train[batch[relation] == number] if batch[-1] else graph.train
        ahead = pl.DataFrame({"user": rows[:, 0], "relation": rows[:, 1], "other": rows[:, 2]})
        back = ahead.select(user="other", relation="relation", other="user")
        yield pl.concat([ahead.with_columns(ahead=True), back.with_columns(ahead=False)])


def _by_neighbour(known: pl.DataFrame, graph: Graph, column: str) -> list[Leak]:
    """A user's label guessed as the commonest among the other users with the same neighbour."""
    key = ["relation", "ahead", "other"]
    counts = known.group_by(*key, "label").len("votes")
    best = counts.group_by(key).agg(
        first=pl.col("votes").max(),
        second=pl.col("votes").top_k(2).min() * (pl.len() > 1),
        total=pl.col("votes").sum(),
        winner=pl.col("label").sort_by("votes").last(),
    )
    judged = known.join(best.filter(pl.col("total") > 1), on=key).with_columns(
        right=(pl.col("label") == pl.col("winner")) & (pl.col("first") - 1 > pl.col("second"))
    )
    found = judged.group_by("relation", "ahead").agg(
        accuracy=pl.col("right").mean(), users=pl.col("user").n_unique()
    )
    found = found.filter((pl.col("accuracy") >= SURE) & (pl.col("users") >= LEAST_USERS))
    return _leaks(found, graph, column, "users with the same neighbour share it")


def _by_having(known: pl.DataFrame, graph: Graph, column: str, common: float) -> list[Leak]:
    """A label that nearly all users of a relation share, though it is not that common."""
    people = known.unique(["user", "relation", "ahead"])
    counts = people.group_by("relation", "ahead", "label").len("votes")
    found = counts.group_by("relation", "ahead").agg(
        accuracy=pl.col("votes").max() / pl.col("votes").sum(), users=pl.col("votes").sum()
    )
    sure = (pl.col("accuracy") >= SURE) & (pl.col("users") >= LEAST_USERS)
    # by chance all `users` would be of the commonest class with probability common ** users
    unlikely = pl.col("users") * np.log(common) < np.log(1e-6)
    return _leaks(found.filter(sure & unlikely), graph, column, "nearly all its users share it")


def _leaks(found: pl.DataFrame, graph: Graph, column: str, how: str) -> list[Leak]:
    names = graph.relations.names(found["relation"].to_numpy())
    rows = found.with_columns(name=names).sort("name", "ahead", descending=[False, True])
    once = rows.unique("name", keep="first", maintain_order=True)
    return [
        Leak(row["name"], column, row["users"], row["accuracy"], how)
        for row in once.iter_rows(named=True)
    ]


def held_out_in_graph(graph: Graph, interactions: pl.DataFrame) -> pl.DataFrame:
    """(user, item, split, relation) of held-out interactions that are training triples."""
    held = leave_one_out(interactions).filter(pl.col("split") != "train")
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
