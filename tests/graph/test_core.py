"""Rows are held out before the k-core is taken, so that graph and task agree on what is tested."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from medapps.errors import MedappsError
from medapps.graph.config import SplitConfig
from medapps.graph.split import TEST, VALID, PurchaseSplit, leave_one_out, split_purchases


def table(seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pl.DataFrame(
        {
            "user": [f"user:{i}" for i in rng.integers(0, 30, 400)],
            "item": [f"item:{i}" for i in rng.geometric(0.08, 400)],
            "timestamp": rng.integers(0, 50, 400),
        }
    )
    return frame.unique(["user", "item"], maintain_order=True)


def everything(split: PurchaseSplit) -> pl.DataFrame:
    return split.table(*range(6))


def test_a_core_tests_nothing_that_the_whole_table_would_train_on() -> None:
    frame = table()
    held = {
        (user, item, split)
        for user, item, split in leave_one_out(frame).select("user", "item", "split").iter_rows()
    }
    found = split_purchases(frame, SplitConfig(core=4))
    for part, split in {TEST: "test", VALID: "valid"}.items():
        rows = found.table(part)
        assert len(rows) > 3
        assert {(user, item, split) for user, item in rows.iter_rows()} <= held


def test_a_core_leaves_no_item_with_fewer_training_rows() -> None:
    found = split_purchases(table(), SplitConfig(core=4))
    user, item = found.pairs[found.part != TEST].T
    assert np.bincount(item).min() >= 4
    assert np.bincount(user).min() >= 4


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_bad_ratings_of_a_file_are_dropped_when_asked(tmp_path: Path, suffix: str) -> None:
    rating = pl.Series([1.0] * 200)
    rating[3], rating[5], rating[7], rating[9] = None, float("nan"), float("inf"), -2.0
    frame = table().head(200).with_columns(rating=rating)
    file = tmp_path / f"interactions.{suffix}"
    frame.write_parquet(file) if suffix == "parquet" else frame.write_csv(file)
    split = split_purchases(file, SplitConfig(bad_ratings="drop"))
    assert split.notes["bad_ratings"] == 4
    good = frame.filter(~pl.int_range(pl.len()).is_in([3, 5, 7, 9]))
    rows = everything(split).sort("user", "item")
    assert rows.equals(good.select("user", "item").sort("user", "item"))
    with pytest.raises(MedappsError, match="rating"):
        split_purchases(file)


@pytest.mark.parametrize("words", [["dev", "holdout"], ["train", None], [1, 2]])
def test_a_split_column_that_is_not_asked_for_is_not_read(tmp_path: Path, words: list) -> None:
    frame = table().head(200).with_columns(split=pl.Series(words * 100, strict=False))
    frame.write_parquet(tmp_path / "interactions.parquet")
    split = split_purchases(tmp_path / "interactions.parquet", SplitConfig(own_split=False))
    frame.drop("split").write_parquet(tmp_path / "plain.parquet")
    assert split.digest == split_purchases(tmp_path / "plain.parquet").digest
    assert len(split_purchases(frame, SplitConfig(own_split=False)).pairs) == 200
    with pytest.raises(MedappsError, match="split"):
        split_purchases(tmp_path / "interactions.parquet")
