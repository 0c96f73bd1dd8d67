"""Training and testing a recommender: models, references, and input that is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import medapps as ma
from medapps.errors import MedappsError
from medapps.graph.config import SplitConfig
from medapps.graph.split import TRAIN, VALID, split_purchases
from medapps.recommend.config import RecommendConfig
from medapps.recommend.lists import evaluate
from medapps.recommend.problem import problem_of
from medapps.recommend.run import recommend_products, reference_report, train_recommender
from medapps.recommend.vectors import users_of
from tests.recommend.worlds import ITEMS, world

GRAPH = RecommendConfig(model="graph")


@pytest.mark.parametrize("seed", [0, 1])
def test_the_model_graph_is_the_score_of_the_crop(seed: int) -> None:
    made = world(seed)
    split = split_purchases(made.bought)
    result = train_recommender(made.crop, split, GRAPH)
    assert set(result.report.details["parts"]) == {"graph", "popularity"}
    assert result.report.details["parts"]["graph"] == {"weight": 1.0, "cold_weight": 1.0}
    assert result.report.details["seconds"] == {}  # nothing is trained or tuned
    items = result.model.items.names()
    for user in ("user:000", "user:077", "user:149"):
        score = made.crop.score([user] * ITEMS, ["takes"] * ITEMS, items)
        own = set(split.table(TRAIN, VALID).filter(user=user)["item"])
        order = [items[int(i)] for i in np.argsort(-score, kind="stable")]
        expected = [item for item in order if item not in own]
        listed = result.model.recommend([user], ITEMS)
        assert listed["item"].to_list() == expected
        by_name = dict(zip(items, score, strict=True))
        assert listed["score"].to_list() == pytest.approx([by_name[i] for i in expected], abs=1e-4)


def test_the_model_graph_needs_purchases_in_the_graph() -> None:
    made = world()
    crop = replace(made.crop, relations=None, relation_ids=None)
    for source in (None, crop):
        with pytest.raises(MedappsError, match=r"--model graph needs .*takes.*--model ncf"):
            train_recommender(source, made.bought, GRAPH)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [0.3, 3.0])
def test_vectors_never_make_validation_worse(seed: int, noise: float) -> None:
    made = world(seed, noise)
    split = split_purchases(made.bought)
    config = RecommendConfig(references=())
    alone = train_recommender(None, split, config)
    joint = train_recommender(made.crop, split, config)
    assert joint.report.details["valid"] >= alone.report.details["valid"] - 1e-9
    assert joint.report.unit_digest == alone.report.unit_digest


def test_the_value_on_validation_is_that_of_the_lists() -> None:
    made = world(2)
    split = split_purchases(made.bought)
    problem = problem_of(split, users_of(made.crop))
    found = evaluate(_scores(made.crop, problem), problem.valid, problem.train)
    report = train_recommender(made.crop, split, GRAPH).report
    assert report.details["valid"] == pytest.approx(found["ndcg_at_10"].mean())


def _scores(crop: ma.Crop, problem: object):  # type: ignore[no-untyped-def]
    users, items = problem.users.names(), problem.items.names()  # type: ignore[attr-defined]

    def scores(rows: np.ndarray) -> np.ndarray:
        heads = users.gather(np.repeat(rows, len(items)))
        tails = items.gather(np.tile(np.arange(len(items)), len(rows)))
        found = crop.score(heads, ["takes"] * len(heads), tails)
        return found.reshape(len(rows), -1).astype(np.float32)

    return scores


def test_vectors_help_most_where_there_are_no_purchases() -> None:
    made = world(0, 0.1)
    split = split_purchases(made.bought, SplitConfig(cold_share=0.3))
    config = RecommendConfig(references=("popularity",))
    real = train_recommender(made.crop, split, config).report
    wrong = np.array(made.crop.entities)
    wrong[made.crop.users] = np.random.default_rng(0).permutation(wrong[made.crop.users])
    others = {
        "none": train_recommender(None, split, config).report.metrics,
        "shuffled": train_recommender(
            replace(made.crop, entities=wrong), split, config
        ).report.metrics,
        "popularity": real.details["references"]["popularity"],
    }
    for name, metrics in others.items():
        assert real.metrics["cold.ndcg_at_10"] > 1.5 * metrics["cold.ndcg_at_10"], name
    assert others["none"]["cold.ndcg_at_10"] == pytest.approx(
        others["popularity"]["cold.ndcg_at_10"]
    )
    assert real.details["cold_users"] == real.units["cold.ndcg_at_10"].shape[1] > 20


def test_data_without_validation_purchases_can_be_trained_on() -> None:
    made = world()
    two = made.bought.group_by("user", maintain_order=True).head(2)
    split = split_purchases(two)
    assert not len(split.rows(VALID))
    for source in (None, made.crop):
        report = train_recommender(source, split, RecommendConfig(references=())).report
        assert report.details["valid"] == 0 and report.metrics["full.hit_at_10"] > 0


def test_users_without_training_purchases_validate_the_weights_of_the_cold() -> None:
    made = world(1)
    rng = np.random.default_rng(0)
    late = made.bought.with_columns(
        timestamp=pl.col("timestamp")
        + 100 * pl.col("user").is_in([f"user:{u:03d}" for u in range(30)])
        + pl.Series(rng.random(len(made.bought)))
    )
    split = split_purchases(late, SplitConfig(by="time"))
    first = set(split.table(VALID)["user"]) - set(split.table(TRAIN)["user"])
    assert len(first) > 5
    report = train_recommender(made.crop, split, RecommendConfig(references=())).report
    cold = {name: part["cold_weight"] for name, part in report.details["parts"].items()}
    assert cold["graph"] + cold["service"] == pytest.approx(1) and cold["graph"] != 0.9
    popular = reference_report("popularity", split, RecommendConfig()).metrics
    assert report.metrics["cold.ndcg_at_10"] > popular["cold.ndcg_at_10"]


@pytest.mark.parametrize("name", ["popularity", "itemknn", "ease", "als", "bpr"])
def test_references_beat_chance_on_the_same_split(interactions: pl.DataFrame, name: str) -> None:
    split = split_purchases(interactions, SplitConfig(cold_share=0.2))
    report = reference_report(name, split, RecommendConfig(sampled_negatives=20))
    assert report.unit_digest == split.digest
    chance = 10 / 60
    floor = {"popularity": 0.8, "bpr": 1.5}.get(name, 2.0) * chance
    assert report.metrics["full.hit_at_10"] > floor
    assert "cold.ndcg_at_10" in report.metrics


def test_a_table_is_split_as_usual(interactions: pl.DataFrame) -> None:
    config = RecommendConfig(parts=("neighbours",), references=())
    one = ma.recommend_products(None, interactions, config)
    assert one.metrics == recommend_products(None, split_purchases(interactions), config).metrics


def _frame(**columns: list) -> pl.DataFrame:
    rows = {"user": ["a", "a", "a", "b", "b"], "item": ["x", "y", "z", "x", "z"]}
    return pl.DataFrame(rows | columns)


@pytest.mark.parametrize(
    ("frame", "given", "message"),
    [
        (_frame().drop("item"), {}, "no column 'item'; it has 'user'"),
        (_frame().clear(), {}, "empty"),
        (_frame(item=["x", None, "z", "x", "z"]), {}, "'item' has 1 .*row 2"),
        (_frame(rating=[1, -2, 3, 4, 5]), {}, "1 ratings .* negative.*row 2.*bad_ratings=drop"),
        (_frame(rating=[1.0, 2.0, float("nan"), 1, 1]), {}, "not finite.*row 3"),
        (_frame(rating=["good"] * 5), {}, "rating.*ratings are numbers"),
        (_frame(timestamp=[1.0, float("inf"), 2, 3, 4]), {}, "timestamp.*not finite.*row 2"),
        (_frame(timestamp=["early"] * 5), {}, "timestamp.*number or a date"),
        (_frame(split=["train", "trian", "test", "train", "test"]), {}, "'trian'.*own_split=false"),
        (_frame().head(1), {}, "single interaction"),
        (_frame(), {"core": 9}, "9-core is empty.*split.core"),
        (_frame(), {"list_length": 4}, "Lists of 4 items.*catalogue has 3"),
        (_frame(user=[1.5, 1.5, 1.5, 2.5, 2.5]), {}, "type Float64; ids are strings or integers"),
    ],
)
def test_wrong_interactions_are_explained(frame: pl.DataFrame, given: dict, message: str) -> None:
    config = dict(given)
    length = config.pop("list_length", 1)
    with pytest.raises(MedappsError, match=message):
        split = split_purchases(frame, SplitConfig(**config))
        recommend_products(None, split, RecommendConfig(list_length=length))
