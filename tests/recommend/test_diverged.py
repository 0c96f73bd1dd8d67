"""Scores that are no numbers rank last in every protocol, and a diverged network is an error."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch

from medapps.crop.service import NamedVectors
from medapps.errors import MedappsError
from medapps.evaluate.metrics import rank_among
from medapps.graph.ids import IdMap
from medapps.graph.split import TRAIN, VALID, split_purchases
from medapps.label.config import LabelConfig
from medapps.label.network import Examples, MlpSetting, train_mlps
from medapps.label.run import train_labeller
from medapps.recommend.config import NcfConfig, RecommendConfig
from medapps.recommend.evaluation.measure import in_blocks, measure
from medapps.recommend.ncf_paper.problem import prepare
from medapps.recommend.ncf_paper.ranking import count_ranks
from medapps.recommend.ncf_paper.run import train_ncf_paper
from medapps.recommend.run import tests_of as prepare_tests

NAN = np.nan


def naive(scores: list[float], target: int, allowed: list[int]) -> float:
    """The rank of one target, one comparison at a time."""
    own, rank = scores[target], 1.0
    for other in allowed:
        if other != target:
            lost = np.isnan(own) or own == -np.inf
            rank += 1 if lost or scores[other] > own else 0.5 * (scores[other] == own)
    return rank


def test_no_number_is_the_worst_score_in_full_ranking() -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 4, (200, 12)).astype(np.float32)  # many ties
    scores[rng.random(scores.shape) < 0.2] = NAN
    scores[rng.random(scores.shape) < 0.1] = -np.inf
    seen = rng.random(scores.shape) < 0.3
    targets = rng.integers(0, 12, 200)
    want = [
        naive(row, target, np.flatnonzero(~mask).tolist())
        for row, target, mask in zip(scores.tolist(), targets, seen, strict=True)
    ]
    table = torch.from_numpy(scores.copy())
    assert count_ranks(table, targets, seen).tolist() == want
    assert not table.isnan().any(), "lists are cut from this table"
    others = np.delete(np.arange(12), 0)
    got = rank_among(scores[:, :1], scores[:, 1:], ~seen[:, 1:])
    want = [
        naive(s, 0, others[~m[1:]].tolist()) for s, m in zip(scores.tolist(), seen, strict=True)
    ]
    assert got.tolist() == want


def test_a_recommender_without_numbers_is_the_worst_one(
    planted: NamedVectors, interactions: pl.DataFrame
) -> None:
    config = RecommendConfig(ncf=NcfConfig(epochs=0), references=(), sampled_negatives=20)
    split = split_purchases(interactions)
    study, tests = prepare(split, config), prepare_tests(split, config)
    blocks = in_blocks(lambda users: np.full((len(users), 60), NAN, np.float32), 60)
    worst = measure(blocks, tests).means
    assert worst.pop("sampled.mrr") == pytest.approx(1 / (1 + study.candidates.shape[1]))
    assert set(worst.values()) == {0}
    result = train_ncf_paper(planted, study, config, seeds=(0,))
    with torch.no_grad():
        result.model.model.items[3:] = torch.nan
    users = study.users.names(np.arange(20))
    names = study.items.names(np.arange(3)).to_list()
    assert set(result.model.recommend(users, 10)["item"]) <= set(names)


def test_a_recommender_that_diverges_in_its_last_step_is_an_error(
    planted: NamedVectors, interactions: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = torch.optim.AdamW.step

    def overflow(self: torch.optim.AdamW, *given: object) -> object:
        done = step(self, *given)
        with torch.no_grad():
            self.param_groups[0]["params"][0].mul_(3e38).mul_(3e38)
        return done

    config = RecommendConfig(
        ncf=NcfConfig(epochs=1, batch=10**6, average=0), references=(), user_decays=()
    )
    study = prepare(split_purchases(interactions.head(120)), config)
    monkeypatch.setattr(torch.optim.AdamW, "step", overflow)
    with pytest.raises(MedappsError, match=r"diverged.*learning_rate"):
        train_ncf_paper(planted, study, config, seeds=(0,))


def test_a_labeller_without_numbers_is_never_the_best_one(
    planted: NamedVectors, labels: pl.DataFrame
) -> None:
    x = np.concatenate([planted.values, planted.values])
    y = np.tile(np.arange(2), len(x) // 2)
    settings = (MlpSetting(0.0, 1e30), MlpSetting(0.0, 0.01))  # the first shrinks beyond bounds
    data = Examples(np.tile(x, (2, 1)), np.tile(y, 2), np.repeat([TRAIN, VALID], len(x)), 2)
    config = LabelConfig(hidden=8, learning_rate=0.01, epochs=3, patience=3, batch=64)
    fit = train_mlps(data, (0, 1), settings, config)
    assert all(np.isfinite(part).all() for part in (fit.w1, fit.w2))
    assert (fit.valid[:, 0] < fit.valid[:, 1]).all() and (fit.epoch[:, 1] > 0).all()
    with pytest.raises(MedappsError, match="labeller diverged"):
        train_mlps(data, (0, 1), settings[:1], config)


def test_a_user_without_numbers_is_not_labelled_or_recommended_to(
    planted: NamedVectors, labels: pl.DataFrame, interactions: pl.DataFrame
) -> None:
    quick = LabelConfig(epochs=1, controls=False)
    model = train_labeller(planted, labels, quick, seeds=(0,)).model
    config = RecommendConfig(ncf=NcfConfig(epochs=1), references=(), user_decays=())
    study = prepare(split_purchases(interactions), config)
    recommender = train_ncf_paper(planted, study, config, seeds=(0,)).model
    new = pl.Series(["new"])
    broken = NamedVectors(IdMap.of(new), np.full((1, 8), NAN, np.float32), "broken")
    with pytest.raises(MedappsError, match=r"'new'.*not finite"):
        model.predict(broken, new)
    with pytest.raises(MedappsError, match=r"'new'.*not finite"):
        recommender.recommend(new, 5, broken)
