"""What `check_dataset` must find, and what it must not."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from medapps.graph import check
from medapps.graph.check import Check, check_dataset, label_leaks
from medapps.graph.read import read_graph
from medapps.graph.split import leave_one_out
from medapps.graph.user_tables import read_interactions


@pytest.fixture
def copy(tiny_dataset: Path, tmp_path: Path) -> Path:
    """A data set to spoil."""
    return Path(shutil.copytree(tiny_dataset, tmp_path / "copy"))


def add(folder: Path, rows: pl.DataFrame) -> None:
    """Append triples to the graph of a folder."""
    path = folder / "skg.parquet"
    pl.concat([pl.read_parquet(path), rows]).write_parquet(path)


def found(check: Check) -> dict[str, str]:
    return {problem.what: problem.severity for problem in check.problems}


def test_a_synthetic_set_is_clean_and_counted(tiny_dataset: Path) -> None:
    check = check_dataset(tiny_dataset)
    assert check.problems == ()
    assert check.counts["entities"] == check.counts["users"] == 300
    assert check.counts["triples"] == check.relations["triples"].sum() == 3000
    assert check.counts["labels"] == ["gender", "life_stage", "segment"]
    graph = pl.read_parquet(tiny_dataset / "skg.parquet")
    ends = pl.concat([graph["head"], graph["tail"]]).value_counts()["count"]
    assert check.degrees["entities"].to_list()[-1] == ends.max()
    assert check.degrees["entities"].to_list()[2] == ends.median()
    follows = graph.filter(relation="follows")
    row = check.relations.row(by_predicate=pl.col("relation") == "follows", named=True)
    assert row["heads"] == follows["head"].n_unique() and row["triples"] == len(follows)


def test_duplicates_and_loops_with_their_rows(copy: Path) -> None:
    first = pl.read_parquet(copy / "skg.parquet").head(1)
    add(copy, pl.concat([first, first.with_columns(tail=pl.col("head"))]))
    check = check_dataset(copy)
    problems = {problem.what: problem for problem in check.problems}
    assert problems["duplicates"].rows == (1, 3001) and problems["duplicates"].count == 1
    assert problems["self_loops"].rows == (3002,)
    assert check.errors == ()


@pytest.mark.parametrize("column", ["gender", "life_stage", "segment"])
@pytest.mark.parametrize("way", ["value", "reversed", "relation"])
def test_a_relation_that_tells_a_label(column: str, way: str, copy: Path) -> None:
    labels = pl.read_parquet(copy / "labels.parquet").head(250)
    user, value = pl.col("user"), pl.col(column)
    rows = {
        "value": labels.select(head=user, relation=pl.lit("has"), tail="value:" + value),
        "reversed": labels.select(head="value:" + value, relation=pl.lit("of"), tail=user),
        "relation": labels.select(head=user, relation="is_" + value, tail=pl.lit("thing")),
    }[way]
    add(copy, rows.select("head", "relation", "tail"))
    check = check_dataset(copy)
    leaks = [problem for problem in check.errors if problem.what == "label_leak"]
    assert leaks and all(f"tells the label {column}" in leak.message for leak in leaks)


def test_chance_and_friendship_are_no_leak(copy: Path) -> None:
    labels = pl.read_parquet(copy / "labels.parquet")
    # a value that agrees with the label nine times in ten
    blurred = labels.with_row_index().select(
        head="user",
        relation=pl.lit("often"),
        tail=pl.when(pl.col("index") % 10 > 0).then("gender").otherwise(pl.lit("male")),
    )
    add(copy, blurred)
    assert "label_leak" not in found(check_dataset(copy))


@pytest.mark.parametrize("split", ["valid", "test"])
def test_held_out_interactions_in_the_graph(split: str, copy: Path) -> None:
    held = leave_one_out(read_interactions(copy)).filter(split=split).head(3)
    add(copy, held.select(head="item", relation=pl.lit("sold_to"), tail="user"))
    check = check_dataset(copy)
    assert [problem.what for problem in check.errors] == ["held_out_in_graph"]
    assert check.errors[0].count == 3
    assert f"the {split} one of" in check.errors[0].message


def test_training_interactions_in_the_graph_are_fine(copy: Path) -> None:
    train = leave_one_out(read_interactions(copy)).filter(split="train")
    add(copy, train.select(head="user", relation=pl.lit("bought"), tail="item"))
    assert check_dataset(copy).problems == ()


def test_users_without_triples_and_rare_classes(copy: Path) -> None:
    labels = pl.read_parquet(copy / "labels.parquet")
    extra = labels.head(1).with_columns(user=pl.lit("user:x"), segment=pl.lit("odd"))
    pl.concat([extra, labels]).write_parquet(copy / "labels.parquet")
    check = check_dataset(copy)
    assert found(check) == {"users_without_triples": "warning", "rare_classes": "warning"}
    problems = {problem.what: problem for problem in check.problems}
    assert problems["users_without_triples"].rows == (1,)


def test_bad_tables_are_listed_not_raised(copy: Path) -> None:
    labels = pl.read_parquet(copy / "labels.parquet")
    pl.concat([labels, labels.head(1)]).write_parquet(copy / "labels.parquet")
    (copy / "interactions.parquet").write_bytes(b"PAR1")
    assert found(check_dataset(copy)) == {"labels": "error", "interactions": "error"}
    (copy / "skg.parquet").unlink()
    assert found(check_dataset(copy)) == {"unreadable": "error"}


def test_repeated_interactions_are_stated(copy: Path) -> None:
    bought = pl.read_parquet(copy / "interactions.parquet")
    pl.concat([bought, bought.head(2)]).write_parquet(copy / "interactions.parquet")
    (problem,) = check_dataset(copy).problems
    assert (problem.what, problem.count) == ("repeated", 2)
    assert problem.rows == (len(bought) + 1, len(bought) + 2)


def test_a_test_triple_in_training(tmp_path: Path) -> None:
    rows = pl.DataFrame({"head": ["a", "b"], "relation": "r", "tail": ["b", "c"]})
    rows.write_parquet(tmp_path / "train.parquet")
    rows.tail(1).write_parquet(tmp_path / "test.parquet")
    assert found(check_dataset(tmp_path)) == {"split_overlap": "error"}


@pytest.mark.parametrize(
    ("name", "unseen"), [("fb15k-237", [9, 28]), ("wn18rr", [210, 210]), ("codex-m", [])]
)
def test_published_oddities(name: str, unseen: list[int], data: Callable[[str], Path]) -> None:
    check = check_dataset(data(name))
    assert check.errors == ()
    assert [p.count for p in check.problems if p.what == "unseen"] == unseen


@pytest.mark.parametrize("name", ["ml-100k", "ciao", "douban-book", "blogcatalog"])
def test_real_social_sets_have_no_leak(name: str, data: Callable[[str], Path]) -> None:
    assert check_dataset(data(name)).errors == ()


def test_leaks_are_named_once_per_relation(copy: Path) -> None:
    labels = pl.read_parquet(copy / "labels.parquet")
    for column in ("gender", "segment"):
        add(copy, labels.select(head="user", relation=pl.lit(f"has_{column}"), tail=column))
    told = label_leaks(read_graph(copy), labels)
    assert [(leak.column, leak.relation) for leak in told] == [
        ("gender", "has_gender"),
        ("segment", "has_segment"),
    ]


@pytest.mark.parametrize("seed", range(5))
def test_judging_by_neighbours_equals_counting_votes(seed, monkeypatch) -> None:
    monkeypatch.setattr(check, "LEAK_ACCURACY", 0.0)
    monkeypatch.setattr(check, "LEAST_USERS", 1)
    rng = np.random.default_rng(seed)
    user, other = rng.integers(0, 40, 150), rng.integers(0, 15, 150)
    label = rng.integers(-1, 3, 40).astype(np.int32)
    right, judged = [], set()
    for i in range(150):
        votes = Counter(
            int(label[user[j]])
            for j in range(150)
            if j != i and other[j] == other[i] and label[user[j]] >= 0
        )
        if label[user[i]] >= 0 and votes:
            judged.add(int(user[i]))
            own = votes.pop(int(label[user[i]]), 0)
            right.append(own > max(votes.values(), default=0))
    told = check._by_neighbour(user.astype(np.int32), other.astype(np.int32), label)
    assert told == (len(judged), pytest.approx(np.mean(right)))
