"""Hand-made reports with a known answer."""

from __future__ import annotations

from typing import Any

import numpy as np

from medapps.report import Report


def unit_report(method: str, values: np.ndarray, dim: int = 10, **more: Any) -> Report:
    """A recommendation report whose metric is the mean of `values` (seeds, units)."""
    values = np.atleast_2d(np.asarray(values, np.float32))
    given: dict[str, Any] = {
        "task": "recommend",
        "data": "toy",
        "seeds": tuple(range(len(values))),
        "by_seed": {"full.ndcg_at_10": [float(row.mean()) for row in values]},
        "units": {"full.ndcg_at_10": values},
        "unit_digest": "split",
        "cost": {"train_seconds": 2.0 * dim, "bytes": 4.0 * dim * 100},
    }
    return Report(method=method, dim=dim, **given | more)


def label_report(method: str, truth: np.ndarray, guess: np.ndarray, dim: int = 10) -> Report:
    """A labelling report with the guesses (seeds, users) of a truth (users,)."""
    from sklearn.metrics import f1_score

    guess = np.atleast_2d(guess)
    return Report(
        task="label",
        method=method,
        dim=dim,
        data="toy",
        seeds=tuple(range(len(guess))),
        by_seed={"f1_macro": [f1_score(truth, row, average="macro") for row in guess]},
        units={
            "truth": np.broadcast_to(truth, guess.shape).astype(np.float32),
            "guess": guess.astype(np.float32),
        },
        unit_digest="users",
        details={"label": "age"},
    )
