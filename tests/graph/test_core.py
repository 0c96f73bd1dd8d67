"""Rows are held out before the k-core is taken, so that graph and task agree on what is tested."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from medapps.errors import MedappsError
from medapps.graph.interactions import Interactions
from medapps.graph.split import TEST, VALID, leave_one_out
from medapps.recommend.config import RecommendConfig
from medapps.stages.tasks import read_problem


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


def test_a_core_tests_nothing_that_the_whole_table_would_train_on() -> None:
    frame = table()
    held = {
        (user, item, split)
        for user, item, split in leave_one_out(frame).select("user", "item", "split").iter_rows()
    }
    found = Interactions.of(frame, core=4)
    names = {TEST: "test", VALID: "valid"}
    for part, split in names.items():
        rows = found.part == part
        assert rows.sum() > 3
        pairs = zip(
            found.users.names(found.user[rows]), found.items.names(found.item[rows]), strict=True
        )
        assert {(user, item, split) for user, item in pairs} <= held


def test_a_core_leaves_no_item_with_fewer_training_rows() -> None:
    found = Interactions.of(table(), core=4)
    counted = found.part != TEST
    assert np.bincount(found.item[counted]).min() >= 4
    assert np.bincount(found.user[counted]).min() >= 4


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_bad_ratings_of_a_file_are_dropped_when_asked(tmp_path: Path, suffix: str) -> None:
    rating = pl.Series([1.0] * 200)
    rating[3], rating[5], rating[7], rating[9] = None, float("nan"), float("inf"), -2.0
    frame = table().head(200).with_columns(rating=rating)
    file = tmp_path / f"interactions.{suffix}"
    frame.write_parquet(file) if suffix == "parquet" else frame.write_csv(file)
    study = read_problem(file, RecommendConfig(bad_ratings="drop"))
    assert study.notes["bad_ratings"] == 4
    good = frame.filter(~pl.int_range(pl.len()).is_in([3, 5, 7, 9]))
    rows = study.split_table().select("user", "item").sort("user", "item")
    assert rows.equals(good.select("user", "item").sort("user", "item"))
    with pytest.raises(MedappsError, match="rating"):
        read_problem(file, RecommendConfig())


@pytest.mark.parametrize("words", [["dev", "holdout"], ["train", None], [1, 2]])
def test_a_split_column_that_is_not_asked_for_is_not_read(tmp_path: Path, words: list) -> None:
    frame = table().head(200).with_columns(split=pl.Series(words * 100, strict=False))
    frame.write_parquet(tmp_path / "interactions.parquet")
    study = read_problem(tmp_path / "interactions.parquet", RecommendConfig(own_split=False))
    frame.drop("split").write_parquet(tmp_path / "plain.parquet")
    assert study.digest == read_problem(tmp_path / "plain.parquet", RecommendConfig()).digest
    assert len(Interactions.of(frame, own_split=False).user) == 200
    with pytest.raises(MedappsError, match="split"):
        read_problem(tmp_path / "interactions.parquet", RecommendConfig())
