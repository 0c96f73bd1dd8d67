"""Metrics against scikit-learn and cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, ndcg_score
from sklearn.metrics import log_loss as sklearn_log_loss

from medapps.evaluate.metrics import (
    batched_f1_macro,
    calibration,
    class_scores,
    confusion,
    coverage,
    label_metrics,
    log_loss,
    rank_metrics,
    realistic_rank,
    reward,
)


@pytest.mark.parametrize("seed", range(5))
def test_label_metrics_equal_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth, guess = rng.integers(0, 5, 60), rng.integers(0, 4, 60)  # class 4 is never guessed
    matrix = confusion(truth, guess, 5)
    assert np.array_equal(matrix, confusion_matrix(truth, guess, labels=range(5)))
    ours = label_metrics(matrix)
    assert ours["accuracy"] == pytest.approx(accuracy_score(truth, guess))
    for average in ("macro", "micro", "weighted"):
        theirs = f1_score(truth, guess, average=average, zero_division=0)
        assert ours[f"f1_{average}"] == pytest.approx(theirs)
    per_class = f1_score(truth, guess, average=None, labels=range(5), zero_division=0)
    assert class_scores(matrix)["f1"] == pytest.approx(per_class)


def test_batched_f1_equals_one_at_a_time() -> None:
    rng = np.random.default_rng(1)
    truth, guesses = rng.integers(0, 4, 80), rng.integers(0, 4, (6, 80))
    expected = [f1_score(truth, guess, average="macro") for guess in guesses]
    assert batched_f1_macro(truth, guesses, 4) == pytest.approx(expected)


def test_ndcg_of_one_relevant_item_equals_scikit_learn() -> None:
    rng = np.random.default_rng(2)
    scores = rng.random((30, 20))
    target = rng.integers(0, 20, 30)
    relevance = np.eye(20)[target]
    rank = realistic_rank((scores > scores[np.arange(30), target][:, None]).sum(1), np.zeros(30))
    for k in (1, 5, 10):
        assert reward(rank, k).mean() == pytest.approx(ndcg_score(relevance, scores, k=k))


def test_ranks_by_hand() -> None:
    values = rank_metrics(np.array([1.0, 2.0, 10.0, 11.0]))
    assert values["ndcg_at_10"] == pytest.approx([1, 1 / np.log2(3), 1 / np.log2(11), 0])
    assert values["hit_at_10"].tolist() == [1, 1, 1, 0]
    assert values["hit_at_1"].tolist() == [1, 0, 0, 0]
    assert values["mrr"] == pytest.approx([1, 0.5, 0.1, 1 / 11])


def test_a_tie_takes_its_middle_rank() -> None:
    assert realistic_rank(np.array([2]), np.array([4])).tolist() == [5]  # places 3 to 7


def test_coverage_counts_distinct_items() -> None:
    assert coverage(np.array([[0, 1], [1, -1]]), 8) == 0.25


def test_calibration_by_hand() -> None:
    probability = np.array([[0.95, 0.05], [0.92, 0.08], [0.55, 0.45]])
    confidence, accuracy, users, error = calibration(np.array([0, 1, 0]), probability)
    assert users[9] == 2 and users[5] == 1 and users.sum() == 3
    assert confidence[9] == pytest.approx(0.935) and accuracy[9] == 0.5 and accuracy[5] == 1
    assert error == pytest.approx((2 * 0.435 + 0.45) / 3)


def test_log_loss_equals_scikit_learn() -> None:
    rng = np.random.default_rng(4)
    probability = rng.dirichlet(np.ones(3), 50)
    truth = rng.integers(0, 3, 50)
    assert log_loss(probability, truth) == pytest.approx(
        sklearn_log_loss(truth, probability, labels=[0, 1, 2])
    )
