"""Purchases are split once: what validates or tests is in no graph, whatever the table is like."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from medapps.errors import MedappsError
from medapps.graph import split as splits
from medapps.graph.config import GraphConfig, SplitConfig
from medapps.graph.read import TAKES, read_graph
from medapps.graph.split import (
    COLD_TEST,
    COLD_VALID,
    TEST,
    TRAIN,
    VALID,
    WITHHELD,
    PurchaseSplit,
    split_purchases,
)

EVERY = (TRAIN, VALID, TEST, COLD_VALID, COLD_TEST, WITHHELD)
LINKS = pl.DataFrame({"head": ["user:0", "user:1"], "relation": "knows", "tail": ["x", "user:2"]})


def table(seed: int, columns: str, rows: int = 300) -> pl.DataFrame:
    """Random purchases with repeated pairs; `columns` says which others there are."""
    rng = np.random.default_rng(seed)
    frame = pl.DataFrame(
        {
            "user": [f"user:{i}" for i in rng.geometric(0.05, rows)],
            "item": [f"item:{i}" for i in rng.geometric(0.1, rows)],
            "timestamp": rng.integers(0, 60, rows),
            "split": rng.choice(["train", "train", "train", "valid", "test"], rows),
        }
    )
    kept = {"times": ["timestamp"], "own": ["split"], "both": ["timestamp", "split"], "none": []}
    return frame.select("user", "item", *kept[columns])


HOW = {
    "usual": {},
    "cold": {"cold_share": 0.3},
    "core": {"core": 2},
    "cold core": {"cold_share": 0.3, "core": 2},
    "not own": {"own_split": False, "cold_share": 0.3},
}


@given(
    st.integers(0, 10**6),
    st.sampled_from(["times", "own", "both", "none"]),
    st.sampled_from([*HOW, "time", "cold time"]),
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_graph_holds_a_purchase_that_validates_or_tests(
    tmp_path: Path, seed: int, columns: str, how: str
) -> None:
    frame = table(seed, columns)
    if how.endswith("time"):
        columns = "both" if columns in ("own", "none") else columns
        frame = table(seed, columns)
        config = SplitConfig(by="time", cold_share=0.3 if "cold" in how else 0)
    else:
        config = SplitConfig(**HOW[how])
    split = split_purchases(frame, config)
    LINKS.write_parquet(tmp_path / "skg.parquet")
    graph = read_graph(tmp_path, GraphConfig(interactions="on"), split)
    rows = graph.train[graph.train[:, 1] == graph.relations.ids([TAKES])[0]]
    names = graph.entities.names
    taken = set(zip(names(rows[:, 0]), names(rows[:, 2]), strict=True))
    assert taken == set(split.table(TRAIN).iter_rows())
    held = set(split.table(*EVERY[1:]).iter_rows())
    assert held and not taken & held
    cold = set(split.table(COLD_VALID, COLD_TEST, WITHHELD)["user"])
    assert not cold & {user for user, _ in taken}
    # parts that the table names stay, and every pair has one part
    every = split.table(*EVERY)
    assert not every.is_duplicated().any()
    if not config.core:
        assert set(every.iter_rows()) == set(frame.select("user", "item").iter_rows())
    if "split" in frame and config.own_split:
        tested = set(frame.filter(split="test").select("user", "item").iter_rows())
        assert not tested & set(split.table(TRAIN, VALID).iter_rows())
    again = split_purchases(frame.sample(fraction=1, shuffle=True, seed=1), config)
    assert again.digest == split.digest and again.users == split.users
    assert np.array_equal(again.pairs, split.pairs) and np.array_equal(again.part, split.part)


def test_a_split_by_time_by_hand() -> None:
    rows = [(f"u{i % 4}", f"i{i}", i) for i in range(20)]
    rows += [("u0", "i19", 3)]  # 21 rows; u3 took i19 last, u0 early
    frame = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    split = split_purchases(frame, SplitConfig(by="time", test_share=0.1))
    # places above 18.9 of 21 are the three latest rows, those above 16.8 the two before
    assert set(split.table(TEST).iter_rows()) == {("u1", "i17"), ("u2", "i18"), ("u3", "i19")}
    assert set(split.table(VALID).iter_rows()) == {("u3", "i15"), ("u0", "i16")}
    assert ("u0", "i19") in set(split.table(TRAIN).iter_rows())
    assert len(split.table(TRAIN)) == 16
    with pytest.raises(MedappsError, match=r"needs a column 'timestamp'.*split.by=last"):
        split_purchases(frame.drop("timestamp"), SplitConfig(by="time"))


def test_a_test_purchase_that_was_made_before_does_not_train() -> None:
    rows = [("a", "x", 0), ("a", "y", 1), ("b", "x", 2), ("b", "y", 3), ("a", "x", 9)]
    frame = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    for config in (SplitConfig(), SplitConfig(by="time", test_share=0.2)):
        split = split_purchases(frame, config)
        assert ("a", "x") in set(split.table(TEST).iter_rows())
        assert ("a", "x") not in set(split.table(TRAIN, VALID).iter_rows())


@pytest.mark.parametrize("cold", [0.0, 0.3])
def test_a_saved_split_is_the_same_split(cold: float, tmp_path: Path) -> None:
    split = split_purchases(table(0, "times"), SplitConfig(cold_share=cold))
    split.save(tmp_path / "split")
    again = PurchaseSplit.load(tmp_path / "split")
    assert again.users == split.users and again.items == split.items
    assert np.array_equal(again.pairs, split.pairs) and np.array_equal(again.part, split.part)
    assert again.notes == split.notes and again.digest == split.digest
    assert again.manifest is not None and again.manifest.about["content"] == split.digest
    file = tmp_path / "split" / "split.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(MedappsError, match="split"):
        PurchaseSplit.load(tmp_path / "split")


def test_the_digest_follows_users_items_and_parts() -> None:
    frame = table(0, "times")
    usual = split_purchases(frame)
    others = [
        split_purchases(frame, SplitConfig(cold_share=0.3)),
        split_purchases(frame, SplitConfig(by="time")),
        split_purchases(frame.with_columns(pl.col("user").str.replace("user", "who"))),
        split_purchases(frame.with_columns(pl.col("item").str.replace("item", "what"))),
    ]
    assert len({usual.digest, *(other.digest for other in others)}) == 5


def test_no_more_users_validate_than_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(user, item, item) for user in range(300) for item in range(6)]
    frame = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    assert len(split_purchases(frame).rows(VALID)) == 300  # at least 2,000 where there are so many
    monkeypatch.setattr(splits, "VALID_LEAST", 20)
    split = split_purchases(frame)
    valid = split.rows(VALID)
    assert len(valid) == int(0.03 * 1800) == 54
    assert (valid[:, 1] == 4).all() and len(split.rows(TEST)) == 300
    assert len(split.rows(TRAIN)) == 1800 - 300 - 54
    monkeypatch.setattr(splits, "VALID_LEAST", 90)
    more = split_purchases(frame).rows(VALID)
    assert len(more) == 90 and {*valid[:, 0]} < {*more[:, 0]}, "a draw by name, not by number"
    cold = split_purchases(frame, SplitConfig(cold_share=0.5))
    assert not {*cold.rows(VALID)[:, 0]} & {*cold.rows(COLD_VALID, COLD_TEST, WITHHELD)[:, 0]}


def test_more_cold_users_are_cold_too_when_the_share_grows() -> None:
    frame = table(3, "times", 2000)
    users = []
    for share in (0.1, 0.3, 0.6):
        split = split_purchases(frame, SplitConfig(cold_share=share))
        cold = split.table(COLD_VALID, COLD_TEST)["user"].unique()
        tested = split.table(TEST, COLD_VALID, COLD_TEST)["user"].n_unique()
        assert abs(len(cold) / tested - share) < 0.2
        users.append(set(cold))
    assert users[0] < users[1] < users[2]
