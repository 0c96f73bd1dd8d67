"""The rule that holds interactions out, against a plain loop and against the tasks."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medapps.errors import MedappsError
from medapps.graph.config import SplitConfig
from medapps.graph.ids import IdMap
from medapps.graph.split import (
    COLD_TEST,
    COLD_VALID,
    TEST,
    TRAIN,
    VALID,
    k_core,
    leave_one_out,
    name_hash,
    split_purchases,
    stratified,
)

ROW = st.tuples(st.sampled_from("abcd"), st.sampled_from("wxyz"), st.integers(0, 3))


def pairs(frame: pl.DataFrame, split: str) -> set[tuple[str, str]]:
    return set(frame.filter(split=split).select("user", "item").iter_rows())


@given(st.lists(ROW, min_size=1, max_size=25), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_the_latest_is_tested_and_row_order_never_matters(rows, random) -> None:  # type: ignore[no-untyped-def]
    frame = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    split = leave_one_out(frame)
    random.shuffle(rows)
    again = leave_one_out(pl.DataFrame(rows, schema=frame.schema, orient="row"))
    latest: dict[str, dict[str, int]] = {}
    for user, item, time in rows:
        mine = latest.setdefault(user, {})
        mine[item] = max(mine.get(item, 0), time)
    for part in ("train", "valid", "test"):
        assert pairs(split, part) == pairs(again, part)
    for user, mine in latest.items():
        at = {part: [mine[i] for u, i in pairs(split, part) if u == user] for part in _PARTS}
        assert [len(at["test"]), len(at["valid"])] == [len(mine) >= 2, len(mine) >= 3]
        assert sum(map(len, at.values())) == len(mine)
        assert not at["test"] or at["test"][0] == max(mine.values())
        assert not at["valid"] or at["valid"][0] >= max(at["train"])


_PARTS = ("train", "valid", "test")


@given(
    st.lists(st.tuples(ROW, st.sampled_from(["train", "train", "test", "valid"])), min_size=1),
    st.sampled_from(["timed", "untimed", "own", "own without valid"]),
)
@settings(max_examples=150, deadline=None)
def test_graph_and_tasks_hold_out_the_same_rows(rows, how) -> None:  # type: ignore[no-untyped-def]
    frame = pl.DataFrame(
        [(*row, part if how == "own" else part.replace("valid", "train")) for row, part in rows],
        schema=["user", "item", "timestamp", "split"],
        orient="row",
    )
    if not how.startswith("own"):
        frame = frame.drop("split")
    if how == "untimed":
        frame = frame.drop("timestamp")
    mine = leave_one_out(frame)
    if not (mine["split"] == "test").any():
        with pytest.raises(MedappsError, match="No user can be tested"):
            split_purchases(frame)
        return
    theirs = split_purchases(frame)
    for number, part in enumerate(_PARTS):
        assert pairs(mine, part) == set(theirs.table(number).iter_rows())


def test_a_hash_depends_on_the_name_alone() -> None:
    few = IdMap.of(pl.Series(["b", "ab", "ba", ""]))
    many = IdMap.of(pl.Series(["b", "ab", "ba", "", "c", "aab"]))
    of = dict(zip(many.names(), name_hash(many), strict=True))
    assert [of[name] for name in few.names()] == name_hash(few).tolist()
    assert len(set(name_hash(many).tolist())) == 6
    numbers = name_hash(IdMap.of(pl.Series(np.arange(10_000))))
    assert abs(np.mean(numbers.astype(np.float64)) / 2**64 - 0.5) < 0.02


def test_every_class_is_split_70_10_20() -> None:
    labels = np.repeat([0, 1, 2], [1000, 100, 10])
    part = stratified(np.random.default_rng(0).integers(0, 2**63, 1110).astype(np.uint64), labels)
    for number, size in ((0, 1000), (1, 100), (2, 10)):
        shares = np.bincount(part[labels == number], minlength=3) / size
        assert shares == pytest.approx([0.7, 0.1, 0.2])


@given(st.lists(st.integers(3, 12), min_size=2, max_size=5), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_every_class_has_all_three_parts(sizes: list[int], seed: int) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    hashes = np.random.default_rng(seed).integers(0, 2**63, len(labels)).astype(np.uint64)
    part = stratified(hashes, labels, seed)
    for number in range(len(sizes)):
        assert set(part[labels == number]) == {TRAIN, VALID, TEST}


def test_a_user_keeps_its_part_when_rows_are_reordered() -> None:
    names = IdMap.of(pl.Series([f"user:{i}" for i in range(200)]))
    labels = np.arange(200) % 3
    hashes = name_hash(names)
    part = stratified(hashes, labels)
    order = np.random.default_rng(0).permutation(200)
    assert np.array_equal(stratified(hashes[order], labels[order]), part[order])
    assert not np.array_equal(stratified(hashes, labels, seed=1), part)


def _table(rows: list[tuple[str, str, int]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")


def _split(frame: pl.DataFrame, cold: float = 0.0) -> tuple[dict[str, set], str]:
    split = split_purchases(frame, SplitConfig(cold_share=cold))
    numbers = {"train": TRAIN, "valid": VALID, "test": TEST}
    numbers |= {"cold_valid": COLD_VALID, "cold_test": COLD_TEST}
    named = {part: set(split.table(number).iter_rows()) for part, number in numbers.items()}
    return named, split.digest


def test_latest_is_tested_and_second_latest_validates() -> None:
    rows = [
        ("a", "x", 1),
        ("a", "y", 3),
        ("a", "z", 2),
        ("b", "x", 5),
        ("b", "y", 4),
        ("c", "z", 1),
    ]
    parts, _ = _split(_table(rows))
    assert parts["test"] == {("a", "y"), ("b", "x")}
    assert parts["valid"] == {("a", "z")}  # b has two rows, c has one
    assert parts["train"] == {("a", "x"), ("b", "y"), ("c", "z")}


def test_ties_of_time_do_not_depend_on_row_order() -> None:
    rng = np.random.default_rng(0)
    rows = [(f"u{i % 20}", f"i{rng.integers(1000)}", 7) for i in range(300)]
    frame = _table(rows).unique(["user", "item"])
    first, digest = _split(frame)
    again, same = _split(frame.sample(fraction=1, shuffle=True, seed=3))
    assert first == again and digest == same
    _, other = _split(frame.filter(pl.col("user") != "u3"))
    assert other != digest


def test_own_split_is_kept_and_validation_is_the_latest_training_row() -> None:
    frame = _table([("a", "x", 1), ("a", "y", 2), ("a", "z", 9), ("b", "x", 1)]).with_columns(
        split=pl.Series(["train", "train", "train", "train"])
    )
    frame = frame.with_columns(
        split=pl.when(pl.col("item") == "x").then(pl.lit("test")).otherwise(pl.col("split"))
    )
    parts, _ = _split(frame)
    assert parts["test"] == {("a", "x"), ("b", "x")}
    assert parts["valid"] == {("a", "z")} and parts["train"] == {("a", "y")}


def test_cold_users_keep_only_their_test_row_or_validate_with_all() -> None:
    rows = [(f"u{u:03d}", f"i{i}", i) for u in range(400) for i in range(5)]
    parts, _ = _split(_table(rows), cold=0.25)
    who = {part: {user for user, _ in pairs} for part, pairs in parts.items()}
    assert who["train"] == who["valid"] == who["test"]
    assert sum(map(len, who.values())) == 400 + 2 * len(who["train"])
    assert 60 < len(who["cold_valid"]) + len(who["cold_test"]) < 140
    assert 0.05 < len(who["cold_valid"]) / (400 - len(who["train"])) < 0.4
    assert parts["cold_test"] == {(user, "i4") for user in who["cold_test"]}
    assert len(parts["cold_valid"]) == 5 * len(who["cold_valid"])


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=60), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_k_core_equals_removing_one_by_one(pairs: list[tuple[int, int]], k: int) -> None:
    rows = sorted(set(pairs))
    left = set(rows)
    while True:
        users = [u for u, _ in left]
        items = [i for _, i in left]
        poor = {(u, i) for u, i in left if users.count(u) < k or items.count(i) < k}
        if not poor:
            break
        left -= {next(iter(poor))}
    user = np.array([u for u, _ in rows], np.int64)
    item = np.array([i for _, i in rows], np.int64)
    kept = k_core(user, item, k)
    assert {row for row, keep in zip(rows, kept, strict=True) if keep} == left
