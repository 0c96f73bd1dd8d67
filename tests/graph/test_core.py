"""Rows are held out before the k-core is taken, so that graph and task agree on what is tested."""

from __future__ import annotations

import numpy as np
import polars as pl

from medapps.graph.interactions import Interactions
from medapps.graph.split import TEST, VALID, leave_one_out


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
