"""Resampling against SciPy, scikit-learn and cases that can be counted by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score

from medapps.comparison.gather import gather
from medapps.evaluate.statistics import (
    Measured,
    bootstrap_f1_macro,
    bootstrap_interval,
    draw_values,
    holm,
    interval,
    two_sided,
    unit_counts,
    wilcoxon,
)
from medapps.report import Report
from tests.comparison.reports import label_report, unit_report


def measured(reports: list[Report], metric: str) -> Measured:
    """What trainings of one method, told apart by their place, say about a metric."""
    marked = [replace(report, details={"training": i}) for i, report in enumerate(reports)]
    (group,) = gather(marked)
    one = group.measured(metric)
    assert one is not None
    return one


def drawn(*reports, draws=4000):
    metric = next(iter(reports[0].by_seed))
    many = [measured([report], metric) for report in reports]
    return draw_values(many, draws=draws, seed=1)


def test_every_draw_has_as_many_units_as_there_are():
    counts = np.concatenate(list(unit_counts(50, 300, np.random.default_rng(0))))
    assert counts.shape == (300, 50)
    assert (counts.sum(1) == 50).all()
    assert counts.mean() == 1 and abs(counts.var() - 49 / 50) < 0.05


def test_blocks_do_not_change_the_draws(monkeypatch):
    whole = np.concatenate(list(unit_counts(30, 64, np.random.default_rng(3))))
    monkeypatch.setattr("medapps.evaluate.statistics.BLOCK_NUMBERS", 30 * 7)
    assert np.array_equal(
        whole, np.concatenate(list(unit_counts(30, 64, np.random.default_rng(3))))
    )


def test_interval_of_a_mean_agrees_with_scipy():
    values = np.random.default_rng(0).gamma(1.0, size=300)
    low, high = interval(drawn(unit_report("med", values))[0])
    answer = stats.bootstrap(
        (values,), np.mean, n_resamples=4000, method="percentile", rng=np.random.default_rng(9)
    ).confidence_interval
    width = answer.high - answer.low
    assert abs(low - answer.low) < 0.05 * width
    assert abs(high - answer.high) < 0.05 * width


def test_interval_of_a_difference_agrees_with_scipys_paired_bootstrap():
    rng = np.random.default_rng(1)
    one = rng.random(200)
    other = one + rng.normal(0.02, 0.1, 200)
    first, second = drawn(unit_report("a", one), unit_report("b", other))
    low, high = interval(second - first)
    answer = stats.bootstrap(
        (other, one),
        lambda a, b: np.mean(a) - np.mean(b),
        paired=True,
        vectorized=False,
        n_resamples=4000,
        method="percentile",
        rng=np.random.default_rng(5),
    ).confidence_interval
    width = answer.high - answer.low
    assert abs(low - answer.low) < 0.06 * width and abs(high - answer.high) < 0.06 * width
    apart = stats.norm.ppf(0.975) * 2 * np.sqrt(one.var() / 200 + other.var() / 200)
    assert high - low < 0.5 * apart  # unpaired would be far wider


def test_macro_f1_on_drawn_units_equals_scikit_learn_on_the_repeated_units():
    rng = np.random.default_rng(2)
    truth, guess = rng.integers(0, 5, 80), rng.integers(0, 5, 80)
    one = measured([label_report("med", truth, guess)], "f1_macro")
    assert one.value == pytest.approx(f1_score(truth, guess, average="macro"))
    values = draw_values([one], draws=20, seed=4)[0]
    counts = np.concatenate(list(unit_counts(80, 20, np.random.default_rng(4)))).astype(int)
    for value, count in zip(values, counts, strict=True):
        again = np.repeat(np.arange(80), count)
        assert value == pytest.approx(f1_score(truth[again], guess[again], average="macro"))


def test_many_units_get_fewer_draws(monkeypatch):
    monkeypatch.setattr("medapps.evaluate.statistics.MOST_PICKS", 3000)
    monkeypatch.setattr("medapps.evaluate.statistics.LEAST_DRAWS", 2)
    (values,) = drawn(unit_report("med", np.arange(100.0)))
    assert len(values) == 30


def test_trainings_that_differ_widen_the_interval():
    units = np.random.default_rng(3).random(2000)
    same = measured([unit_report("med", units)] * 3, "full.ndcg_at_10")
    apart = measured(
        [unit_report("med", units + shift) for shift in (-0.2, 0.0, 0.2)], "full.ndcg_at_10"
    )
    narrow, wide = (interval(draw_values([one], seed=0)[0]) for one in (same, apart))
    assert wide[1] - wide[0] > 0.3 > 0.05 > narrow[1] - narrow[0]


def test_repetitions_of_one_training_are_not_counted_as_trainings():
    units = np.random.default_rng(4).random((2, 500))
    shifted = units + 0.3
    both = measured([unit_report("med", units), unit_report("med", shifted)], "full.ndcg_at_10")
    assert both.clusters == (0, 0, 1, 1)
    values = draw_values([both], draws=4000, seed=0)[0]
    # two trainings 0.3 apart: a quarter of the draws has the lower one twice
    assert np.mean(values < units.mean() + 0.075) == pytest.approx(0.25, abs=0.03)


def test_signed_rank_test_equals_counting_all_signs_and_says_one_when_nothing_differs():
    one, other = np.array([5.0, 4.0, 9.0, 7.5, 6.0, 8.0]), np.array([4.0, 6.0, 4.0, 3.5, 3.0, 2.0])
    difference = one - other
    rank = np.argsort(np.argsort(np.abs(difference))) + 1
    sums = np.array([rank @ signs for signs in product((0, 1), repeat=6)])
    found = rank @ (difference > 0)
    tail = min((sums >= found).mean(), (sums <= found).mean())
    assert wilcoxon(one, other) == pytest.approx(2 * tail)
    assert wilcoxon(one, one) == 1.0


def test_bootstrap_p_value_by_hand():
    assert two_sided(np.array([1.0] * 98 + [-1.0])) == pytest.approx(2 * 2 / 100)
    assert two_sided(np.array([1.0, -1.0])) == 1.0


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_bootstrap_interval_of_a_mean_is_that_of_the_normal_law() -> None:
    values = np.random.default_rng(0).standard_normal((3, 4000)) + 1
    low, high = bootstrap_interval(values)
    per_unit = values.mean(0)
    half = 1.96 * per_unit.std() / np.sqrt(len(per_unit))
    assert low == pytest.approx(per_unit.mean() - half, abs=0.15 * half)
    assert high == pytest.approx(per_unit.mean() + half, abs=0.15 * half)


def test_bootstrap_of_f1_surrounds_the_value() -> None:
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 3, 300)
    guess = np.where(rng.random((2, 300)) < 0.7, truth, rng.integers(0, 3, (2, 300)))
    low, high = bootstrap_f1_macro(truth, guess)
    value = np.mean([f1_score(truth, row, average="macro") for row in guess])
    assert low < value < high and high - low < 0.15
