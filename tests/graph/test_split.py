"""The rule that holds interactions out, against a plain loop and against the tasks."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from medapps.graph.hold_out import leave_one_out as task_split
from medapps.graph.ids import IdMap
from medapps.graph.split import leave_one_out, name_hash
from medapps.recommend.interactions import read_interactions

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
    numbered = read_interactions(frame)
    theirs = task_split(
        numbered.user,
        numbered.item,
        numbered.time,
        numbered.user_hash,
        numbered.item_hash,
        numbered.part,
    )
    for part in _PARTS:
        rows_ = getattr(theirs, part)
        users, items = numbered.users.names(rows_[:, 0]), numbered.items.names(rows_[:, 1])
        assert pairs(mine, part) == set(zip(users, items, strict=True))


def test_a_hash_depends_on_the_name_alone() -> None:
    few = IdMap.of(pl.Series(["b", "ab", "ba", ""]))
    many = IdMap.of(pl.Series(["b", "ab", "ba", "", "c", "aab"]))
    of = dict(zip(many.names(), name_hash(many), strict=True))
    assert [of[name] for name in few.names()] == name_hash(few).tolist()
    assert len(set(name_hash(many).tolist())) == 6
    numbers = name_hash(IdMap.of(pl.Series(np.arange(10_000))))
    assert abs(np.mean(numbers.astype(np.float64)) / 2**64 - 0.5) < 0.02
