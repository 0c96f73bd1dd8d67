"""The network of the NCF paper on planted tastes: protocols, segments, the saved model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from medapps.crop.service import NamedVectors
from medapps.errors import MedappsError
from medapps.graph.config import SplitConfig
from medapps.graph.ids import IdMap
from medapps.graph.split import PurchaseSplit, split_purchases
from medapps.recommend.config import NcfConfig, RecommendConfig
from medapps.recommend.ncf_paper.model import NcfRecommender
from medapps.recommend.ncf_paper.problem import Problem, prepare
from medapps.recommend.ncf_paper.run import RecommendResult, train_ncf_paper
from medapps.recommend.run import reference_report

QUICK = RecommendConfig(
    ncf=NcfConfig(epochs=25, learning_rate=0.01, patience=25, user_dropout=0.3),
    sampled_negatives=20,
)
SPLIT = SplitConfig(cold_share=0.2)


@pytest.fixture(scope="module")
def split(interactions: pl.DataFrame) -> PurchaseSplit:
    return split_purchases(interactions, SPLIT)


@pytest.fixture(scope="module")
def study(split: PurchaseSplit) -> Problem:
    return prepare(split, QUICK)


@pytest.fixture(scope="module")
def result(planted: NamedVectors, study: Problem) -> RecommendResult:
    return train_ncf_paper(planted, study, QUICK, seeds=(0, 1), data="planted")


def test_vectors_help_most_where_there_are_no_interactions(
    result: RecommendResult, planted: NamedVectors, study: Problem, split: PurchaseSplit
) -> None:
    real, rng = result.report.metrics, np.random.default_rng(7)
    controls = {
        "random": rng.standard_normal(planted.values.shape).astype(np.float32),
        "shuffled": rng.permutation(planted.values),
    }
    others = {
        name: train_ncf_paper(
            NamedVectors(planted.names, values, name), study, QUICK, seeds=(0,)
        ).report
        for name, values in controls.items()
    }
    others["none"] = train_ncf_paper(None, study, QUICK, seeds=(0,)).report
    for rival in others.values():
        assert rival.unit_digest == result.report.unit_digest
        assert real["cold.ndcg_at_10"] > 2 * rival.metrics["cold.ndcg_at_10"]
    popular = reference_report("popularity", split, QUICK).metrics
    assert real["full.ndcg_at_10"] > 1.5 * popular["full.ndcg_at_10"]


def test_report_holds_users_of_every_kind(result: RecommendResult, study: Problem) -> None:
    report, segments = result.report, study.segments(QUICK.few)
    assert report.units["full.ndcg_at_10"].shape == (2, segments["full"].sum())
    assert report.units["cold.mrr"].shape == (2, segments["cold"].sum())
    assert segments["cold"].sum() == report.details["cold_users"] > 30
    for name in ("full.ndcg_at_5", "cold.ndcg_at_10", "sampled.ndcg_at_10", "few5.hit_at_10"):
        assert report.units[name].mean() == pytest.approx(report.metrics[name], abs=1e-6)
    table = report.tables["segments"]
    assert ((table["low"] <= table["value"]) & (table["value"] <= table["high"])).all()
    assert 0 < report.metrics["full.coverage"] <= 1


def test_candidates_are_unseen_and_kept(study: Problem, interactions: pl.DataFrame) -> None:
    table = study.candidate_table()
    taken = interactions.select("user", "item")
    drawn = table.select("user", item="negatives").explode("item", empty_as_null=True)
    assert drawn.join(taken, on=["user", "item"], how="semi").is_empty()
    assert table["negatives"].list.n_unique().unique().to_list() == [20]
    parts = study.split_table()
    assert parts.select("user", "item").is_unique().all()


def test_a_data_sets_own_negatives_are_used(split: PurchaseSplit, study: Problem) -> None:
    given = study.candidate_table().sample(fraction=1, shuffle=True, seed=0)
    again = prepare(split, QUICK, given)
    assert again.own_candidates and np.array_equal(again.candidates, study.candidates)
    half = prepare(split, QUICK, given.head(10))
    assert not half.own_candidates


def test_lists_by_name_leave_out_what_was_seen(
    result: RecommendResult, planted: NamedVectors, interactions: pl.DataFrame, tmp_path: Path
) -> None:
    result.model.save(tmp_path / "model")
    model = NcfRecommender.load(tmp_path / "model")
    users = pl.Series("user", ["user:000", "user:299", "stranger", "user:123"])
    table = model.recommend(users, 7, planted)
    assert table.equals(result.model.recommend(users, 7, planted))
    assert table.group_by("user", maintain_order=True).len()["len"].to_list() == [7, 7, 7, 7]
    for _, part in table.group_by("user"):
        assert part["rank"].to_list() == list(range(1, 8))
        assert part["score"].is_sorted(descending=True) and part["item"].is_unique().all()
    history = result.study.split_table().filter(pl.col("split") != "test")
    assert table.join(history, on=["user", "item"], how="semi").is_empty()
    assert table["in_graph"].to_list() == [True] * 7 + [False] * 14 + [True] * 7
    assert table["has_purchases"].equals(table["user"].is_in(history["user"].implode()))


def test_new_users_are_served_by_their_graph_vectors(
    result: RecommendResult, planted: NamedVectors
) -> None:
    twins = NamedVectors(
        IdMap.of("new:" + planted.names.names().str.slice(5)), planted.values, "twins"
    )
    kind = ((planted.values - 2)[:, :2] > 0) @ np.array([1, 2])
    table = result.model.recommend(twins.names.names(), 10, twins)
    group = (table["item"].str.slice(5).cast(pl.Int64) // 15).to_numpy().reshape(-1, 10)
    assert table["in_graph"].all() and not table["has_purchases"].any()
    assert (group == kind[:, None]).mean() > 0.6  # chance: 0.25
    lost = result.model.recommend(twins.names.names(), 10)["item"].to_numpy().reshape(-1, 10)
    assert (lost == lost[0]).all()  # without vectors every newcomer gets the same list


def test_explanations_name_the_nearest_takers(result: RecommendResult) -> None:
    model = result.model
    users = pl.Series("user", ["user:003", "user:010", "user:299"])
    table = model.recommend(users, 4)
    reasons = model.why(table, count=3)
    history = result.study.split_table().filter(pl.col("split") != "test")
    takers = {item: part["user"].to_list() for (item,), part in history.group_by("item")}
    assert "user:299" not in reasons["user"]  # it has no vector
    names = model.users.names().to_list()
    unit = model.service[:, :-1] / np.linalg.norm(
        model.service[:, :-1], axis=1, keepdims=True
    ).clip(1e-12)
    for (user, item), part in reasons.group_by("user", "item"):
        own = names.index(user)
        near = {n: float(unit[own] @ unit[names.index(n)]) for n in takers[item] if n != user}
        near.pop("user:299", None)
        best = sorted(near, key=lambda n: -near[n])[:3]
        assert part["reason"].to_list() == best
        assert part["strength"].to_list() == pytest.approx([near[n] for n in best], abs=1e-5)


def test_refit_trains_on_validation_items_too(study: Problem, planted: NamedVectors) -> None:
    config = QUICK.model_copy(
        update={"refit": True, "ncf": NcfConfig(epochs=3, learning_rate=0.01)}
    )
    plain = config.model_copy(update={"refit": False})
    one = train_ncf_paper(planted, study, config, seeds=(0,))
    two = train_ncf_paper(planted, study, plain, seeds=(0,))
    assert one.report.details["epochs"] == two.report.details["epochs"]
    assert one.report.metrics != two.report.metrics


def test_rules_for_odd_rows_are_counted() -> None:
    frame = pl.DataFrame(
        {
            "user": ["a", "a", "a", "a", "b", "b", "c", "d", "d"],
            "item": ["x", "y", "z", "x", "x", "y", "once", "w", "x"],
            "rating": [1, 1, 1, 1, 1, -1, 1, 1, 1],
        }
    )
    config, drop = RecommendConfig(list_length=1), SplitConfig(bad_ratings="drop")
    study = prepare(split_purchases(frame, drop), config)
    assert study.notes["duplicate_rows"] == 1 and study.notes["bad_ratings"] == 1
    assert study.notes["users_with_one_interaction"] == 2 and study.notes["no_timestamps"] == 1
    assert {0, 3} == set(study.test[:, 0].tolist())  # a and d; b and c have one row
    again = prepare(split_purchases(frame.reverse(), drop), config)
    assert again.digest == study.digest


def test_too_long_lists_are_refused(result: RecommendResult) -> None:
    users = pl.Series("user", ["user:000"])
    with pytest.raises(MedappsError, match=r"61 recommendations.*60 items.*-k between 1 and 60"):
        result.model.recommend(users, 61)
    everything = result.model.recommend(users, 60)
    assert len(everything) < 60  # only what is unseen


def test_without_vectors_nothing_is_explained(study: Problem) -> None:
    config = QUICK.model_copy(update={"ncf": NcfConfig(epochs=1)})
    model = train_ncf_paper(None, study, config, seeds=(0,)).model
    with pytest.raises(MedappsError, match="no graph vectors"):
        model.why(model.recommend(pl.Series("user", ["user:000"]), 2))


def test_every_method_chooses_its_own_regularisation_on_validation_items(study: Problem) -> None:
    def train(*values: float) -> RecommendResult:
        config = QUICK.model_copy(update={"user_decays": values})
        return train_ncf_paper(None, study, config, seeds=(0,))

    alone = {value: train(value).report for value in (0.0, 30.0)}
    best = max(alone, key=lambda value: alone[value].details["valid"][0])
    chosen = train(0.0, 30.0).report
    assert chosen.details["user_decay"] == best
    assert chosen.metrics == alone[best].metrics
    assert alone[0.0].details["valid"] != alone[30.0].details["valid"]


def test_a_sample_of_test_users_leaves_training_alone_and_is_marked(
    split: PurchaseSplit, study: Problem
) -> None:
    some = prepare(split, QUICK.model_copy(update={"test_users": 10}))
    whole = {tuple(row) for row in study.test.tolist()}
    assert len(some.test) == 10 and {tuple(row) for row in some.test.tolist()} < whole
    assert (np.diff(some.test[:, 0]) > 0).all()
    assert np.array_equal(some.train, study.train)
    assert some.notes["test_users_before_sampling"] == len(whole)
    assert some.digest != study.digest, "values of other users must not be paired with these"
