"""Check a data set: counts, degrees, relations, and problems with the rows that show them.

Among the problems are leaks: relations that give labels away, and held-out purchases in the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from medapps.errors import MedappsError
from medapps.graph.config import GraphConfig, TableConfig
from medapps.graph.graph import Graph
from medapps.graph.ids import TripleIds
from medapps.graph.read import graph_files, read_graph, triples_of
from medapps.graph.split import leave_one_out
from medapps.graph.tables import find_table
from medapps.graph.user_tables import label_columns, rare_classes, read_interactions, read_labels

Severity = Literal["error", "warning"]
QUANTILES = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)
_SHOWN = 5
_OF_TRIPLES: dict[str, tuple[Severity, str]] = {
    "duplicates": ("warning", "triples of {file} occur before"),
    "self_loops": ("warning", "triples of {file} lead from an entity to itself"),
    "split_overlap": ("error", "{split} triples are training triples too"),
    "unseen": ("warning", "{split} triples have an entity that training never sees"),
}


@dataclass(frozen=True)
class DataProblem:
    """One thing that is wrong or odd."""

    severity: Severity
    what: str
    """A fixed word: unreadable, duplicates, label_leak, ..."""
    message: str
    count: int = 1
    rows: tuple[int, ...] = ()
    """Some rows where it shows, counted from 1 without the header."""
    file: str = ""


@dataclass(frozen=True)
class Check:
    """What a data set holds and what is wrong with it."""

    path: Path
    counts: dict[str, int | list[str]] = field(default_factory=dict)
    """entities, relations, triples, valid, test, users, items, interactions, labels (columns)."""
    degrees: pl.DataFrame = field(default_factory=pl.DataFrame)
    """Quantiles of the degree over entities and over users."""
    relations: pl.DataFrame = field(default_factory=pl.DataFrame)
    """Per relation: triples, distinct heads, distinct tails."""
    problems: tuple[DataProblem, ...] = ()

    @property
    def errors(self) -> tuple[DataProblem, ...]:
        """The problems that forbid use."""
        return tuple(problem for problem in self.problems if problem.severity == "error")


def check_dataset(
    path: str | Path, config: GraphConfig | None = None, tables: TableConfig | None = None
) -> Check:
    """Look at a graph file or a dataset folder; problems are listed, never raised."""
    path, tables = Path(path), tables or TableConfig()
    config = (config or GraphConfig()).model_copy(
        update={"duplicates": "keep", "self_loops": "keep", "interactions": "off"}
    )
    try:
        files = graph_files(path)
        graph = read_graph(path, config, tables_beside=tables)
    except MedappsError as error:
        return Check(path, problems=(DataProblem("error", "unreadable", str(error)),))
    counts: dict[str, int | list[str]] = {**graph.counts()}
    problems = _graph_problems(graph, files, config)
    if path.is_dir():
        counts |= _labels(path, graph, tables, problems)
        counts |= _interactions(path, graph, tables, problems)
    problems.sort(key=lambda problem: problem.severity)
    return Check(path, counts, _degrees(graph), _relations(graph), tuple(problems))


def _graph_problems(graph: Graph, files: dict[str, Path], config: GraphConfig) -> list[DataProblem]:
    problems: list[DataProblem] = []
    ids = TripleIds(graph.entities, graph.relations)
    keys = {split: ids.pack_ids(getattr(graph, split)) for split in files}
    for split, file in files.items():
        own, triples = keys[split], ids.unpack(keys[split])
        found = {
            "duplicates": np.append(False, own[1:] == own[:-1])[: len(own)],
            "self_loops": triples[:, 0] == triples[:, 2],
        }
        if split != "train":
            ends, trained = triples[:, [0, 2]], graph.train[:, [0, 2]]
            found["split_overlap"] = np.isin(own, keys["train"])
            found["unseen"] = ~np.isin(ends, trained).all(axis=1)
        for what, where in found.items():
            if count := int(where.sum()):
                severity, text = _OF_TRIPLES[what]
                text = f"{count:,} {text.format(file=file.name, split=split)}"
                rows = _rows_of(triples_of(file, config), ids, triples[where][:_SHOWN])
                problems.append(DataProblem(severity, what, text, count, rows, file.name))
    return problems


def _rows_of(table: pl.LazyFrame, ids: TripleIds, triples: np.ndarray) -> tuple[int, ...]:
    """Rows of a table that hold one of these triples."""
    wanted = pl.LazyFrame(
        {
            "head": ids.entities.names(triples[:, 0]),
            "relation": ids.relations.names(triples[:, 1]),
            "tail": ids.entities.names(triples[:, 2]),
        }
    )
    numbered = table.with_row_index("row", offset=1)
    rows = numbered.join(wanted, on=["head", "relation", "tail"], how="semi").select("row")
    return tuple(sorted(rows.collect(engine="streaming")["row"].to_list())[: 2 * _SHOWN])


def _degrees(graph: Graph) -> pl.DataFrame:
    degree = np.bincount(graph.train[:, [0, 2]].reshape(-1), minlength=len(graph.entities))
    columns = {"quantile": QUANTILES, "entities": np.quantile(degree, QUANTILES)}
    return pl.DataFrame(columns | {"users": np.quantile(degree[graph.users], QUANTILES)})


def _relations(graph: Graph) -> pl.DataFrame:
    table = pl.LazyFrame(graph.train, schema=["head", "relation", "tail"]).group_by("relation")
    found = table.agg(
        triples=pl.len(), heads=pl.col("head").n_unique(), tails=pl.col("tail").n_unique()
    )
    frame = found.sort("triples", "relation", descending=[True, False]).collect(engine="streaming")
    return frame.with_columns(graph.relations.names(frame["relation"].to_numpy()).alias("relation"))


def _read(
    folder: Path, stem: str, graph: Graph, tables: TableConfig, problems: list[DataProblem]
) -> tuple[pl.DataFrame | None, str]:
    """The table of labels or interactions, None where it is not there or not readable."""
    file = find_table(folder, [stem])
    if file is None:
        return None, ""
    try:
        if stem == "labels":
            table = read_labels(file, graph, tables.labels.user)
        else:
            table = read_interactions(file, graph, columns=tables.interactions)
    except MedappsError as error:
        problems.append(DataProblem("error", stem, str(error), file=file.name))
        return None, ""
    unknown = np.flatnonzero(graph.entities.ids(table["user"]) < 0)
    if len(unknown):
        count = table["user"].gather(unknown).n_unique()
        rows = tuple(int(row) + 1 for row in unknown[:_SHOWN])
        text = f"{count:,} of {table['user'].n_unique():,} users of {file.name} have no triples"
        what = "users_without_triples"
        problems.append(DataProblem("warning", what, text, count, rows, file.name))
    return table, file.name


def _labels(
    folder: Path, graph: Graph, tables: TableConfig, problems: list[DataProblem]
) -> dict[str, int | list[str]]:
    labels, file = _read(folder, "labels", graph, tables, problems)
    if labels is None:
        return {"labels": []}
    for name in label_columns(labels.schema):
        if len(few := rare_classes(labels, name)):
            text = f"{len(few):,} classes of {name} have fewer than three users"
            problems.append(DataProblem("warning", "rare_classes", text, len(few), file=file))
    for leak in label_leaks(graph, labels):
        text = (
            f"relation {leak.relation} tells the label {leak.column}: {leak.how} "
            f"({leak.accuracy:.1%} of {leak.users:,} users)"
        )
        problems.append(DataProblem("error", "label_leak", text, leak.users, file=file))
    return {"labels": labels.columns[1:]}


def _interactions(
    folder: Path, graph: Graph, tables: TableConfig, problems: list[DataProblem]
) -> dict[str, int | list[str]]:
    table, file = _read(folder, "interactions", graph, tables, problems)
    if table is None:
        return {"items": 0, "interactions": 0}
    parted = leave_one_out(table)
    if again := len(table) - len(parted):
        first = table.select(pl.struct("user", "item").is_first_distinct()).to_series()
        text = f"{again:,} rows of {file} repeat a user and item; the latest counts"
        rows = tuple(row + 1 for row in (~first).arg_true()[:_SHOWN])
        problems.append(DataProblem("warning", "repeated", text, again, rows, file))
    if not (parted["split"] == "test").any():
        text = f"no user of {file} can be tested: nobody has two interactions"
        problems.append(DataProblem("warning", "nothing_to_test", text, file=file))
    found = held_out_in_graph(graph, parted)
    if len(found):
        user, item, split, relation = found.row(0)
        text = (
            f"{len(found):,} held-out interactions are in the graph, such as the {split} one of "
            f"{user} and {item} under {relation}; "
            "leave them out: a training adds what may train"
        )
        problems.append(DataProblem("error", "held_out_in_graph", text, len(found), file=file))
    return {"items": table["item"].n_unique(), "interactions": len(table)}


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
    keys, votes = np.unique(keys, return_counts=True)  # one per neighbour and class
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


def held_out_in_graph(graph: Graph, parted: pl.DataFrame) -> pl.DataFrame:
    """(user, item, split, relation) of held-out interactions that are training triples.

    `parted` is what `leave_one_out` returns.
    """
    ids = graph.entities.ids
    held = parted.filter(pl.col("split") != "train").select("user", "item", "split")
    held = held.with_columns(a=ids(held["user"]), b=ids(held["item"]))
    held = held.filter((pl.col("a") >= 0) & (pl.col("b") >= 0))
    edges = pl.LazyFrame(graph.train, schema=["head", "relation", "tail"])
    ends = (["head", "tail"], ["tail", "head"])
    found = [edges.join(held.lazy(), left_on=both, right_on=["a", "b"]) for both in ends]
    hits = pl.concat(found, how="diagonal").collect(engine="streaming")
    names = graph.relations.names(hits["relation"].to_numpy()).cast(pl.String)
    hits = hits.select("user", "item", "split").with_columns(relation=names)
    return hits.sort("user", "item", "relation")
