"""The recommender by name: lists, strangers, reasons, and its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from medapps.arrays import open_arrays
from medapps.errors import MedappsError
from medapps.graph.config import SplitConfig
from medapps.graph.split import TRAIN, VALID, PurchaseSplit, split_purchases
from medapps.recommend import recommender
from medapps.recommend.config import RecommendConfig
from medapps.recommend.ncf_paper.model import NcfRecommender
from medapps.recommend.recommender import Recommender, load_recommender
from medapps.recommend.run import train_recommender
from tests.recommend.worlds import ITEMS, World, world


@pytest.fixture(scope="module")
def shop() -> World:
    return world()


@pytest.fixture(scope="module")
def split(shop: World) -> PurchaseSplit:
    return split_purchases(shop.bought, SplitConfig(cold_share=0.2))


PARTS = {
    "all": RecommendConfig(),
    "graph": RecommendConfig(model="graph"),
    "factors": RecommendConfig(parts=("collaborative",)),
    "gmf": RecommendConfig(parts=("gmf",)),
    "neighbours": RecommendConfig(parts=("neighbours",)),
    "popularity": RecommendConfig(parts=("popularity",)),
}


@pytest.fixture(scope="module", params=list(PARTS))
def model(request: pytest.FixtureRequest, shop: World, split: PurchaseSplit) -> Recommender:
    return train_recommender(shop.crop, split, PARTS[request.param]).model


def had(split: PurchaseSplit) -> dict[str, set[str]]:
    """What each user has: training and validation purchases."""
    out: dict[str, set[str]] = {}
    for user, item in split.table(TRAIN, VALID).iter_rows():
        out.setdefault(user, set()).add(item)
    return out


def test_lists_leave_out_what_a_user_has(model: Recommender, split: PurchaseSplit) -> None:
    table = model.recommend(model.users.names(), 12)
    seen = had(split)
    assert len(table) == 12 * len(model.users)
    for (user,), part in table.group_by("user"):
        assert not seen.get(user, set()) & set(part["item"])
        assert part["item"].n_unique() == 12 and part["rank"].to_list() == list(range(1, 13))
        assert part["score"].is_sorted(descending=True)
        assert part["has_purchases"].all() == (user in seen) and part["in_graph"].all()


def test_a_stranger_gets_what_is_popular(model: Recommender, split: PurchaseSplit) -> None:
    table = model.recommend(["stranger", "user:000", "stranger"], 8)
    lists = table["item"].to_numpy().reshape(3, 8)
    count = dict(split.table(TRAIN)["item"].value_counts().iter_rows())
    best = sorted(model.items.names(), key=lambda item: (-count.get(item, 0), item))[:8]
    assert lists[0].tolist() == lists[2].tolist() == best
    flags = table.filter(user="stranger").select("in_graph", "has_purchases")
    assert not flags.to_numpy().any()


def test_the_graph_alone_serves_a_user_without_purchases(shop: World, split: PurchaseSplit) -> None:
    for config in (PARTS["all"], PARTS["graph"]):
        model = train_recommender(shop.crop, split, config).model
        table = model.recommend(["user:nobody", "user:none", "stranger"], 10)
        lists = table["item"].to_numpy().reshape(3, 10)
        assert len({*map(tuple, lists.tolist())}) == 3
        assert table["in_graph"].to_list() == [True] * 20 + [False] * 10
        assert not table["has_purchases"].any()
        near = shop.crop.score(["user:nobody"] * ITEMS, ["takes"] * ITEMS, model.items.names())
        if config.model == "graph":
            order = np.argsort(-near, kind="stable")[:10]
            assert lists[0].tolist() == model.items.names(order).to_list()


def test_a_buyer_whom_the_graph_does_not_know_gets_what_is_popular_from_it(shop: World) -> None:
    bought = shop.bought.with_columns(pl.col("user").str.replace("user:00", "who:00"))
    model = train_recommender(shop.crop, bought, PARTS["graph"]).model
    table = model.recommend(["who:004", "stranger"], 10)
    popular = model.recommend(["stranger"], ITEMS)["item"].to_list()
    own = had(split_purchases(bought))["who:004"]
    mine = table.filter(user="who:004")
    assert mine["has_purchases"].all() and not mine["in_graph"].any()
    assert mine["item"].to_list() == [item for item in popular if item not in own][:10]


def test_a_list_is_shorter_where_items_run_out(model: Recommender, split: PurchaseSplit) -> None:
    seen = had(split)
    table = model.recommend(["user:001", "user:nobody"], ITEMS)
    count = dict(table["user"].value_counts().iter_rows())
    assert count == {"user:001": ITEMS - len(seen.get("user:001", ())), "user:nobody": ITEMS}
    for k in (0, ITEMS + 1):
        with pytest.raises(MedappsError, match=f"catalogue has {ITEMS} items.*-k between 1 and"):
            model.recommend(["user:001"], k)
    with pytest.raises(MedappsError, match="empty names"):
        model.recommend(pl.Series(["user:001", None]), 2)
    assert model.recommend(pl.Series("user", [], dtype=pl.String), 3).is_empty()


def test_integer_ids_give_the_same_lists(split: PurchaseSplit, shop: World) -> None:
    numbers = world(integers=True)
    one = train_recommender(shop.crop, shop.bought, PARTS["graph"]).model
    two = train_recommender(numbers.crop, numbers.bought, PARTS["graph"]).model
    words = one.recommend(["user:007", "user:nobody"], 5)
    same = two.recommend([1007, 1150], 5)
    assert same["user"].to_list() == [1007] * 5 + [1150] * 5
    assert [f"item:{item:02d}" for item in same["item"]] == words["item"].to_list()
    assert two.why(same).height > 0 and two.why(same)["item"].dtype.is_integer()
    assert not two.recommend(["1007"], 3)["in_graph"].any()


def test_reasons_are_purchases_of_the_user_and_users_who_took_the_item(
    model: Recommender, split: PurchaseSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = had(split)
    table = model.recommend(["user:002", "user:010", "user:nobody", "stranger"], 4)
    table = table.select("user", "item")
    owned = [(u, i) for u in ("user:002", "user:010") for i in sorted(seen.get(u, ()))[:1]]
    table = pl.concat([table, pl.DataFrame(owned, schema=table.schema, orient="row")])
    reasons = model.why(table, count=3)
    likeness, nearness = model._item_vectors(), model._user_vectors()
    items, users = model.items.names().to_list(), model.users.names().to_list()

    def near(vectors: object, one: int, other: int) -> float:
        rows = vectors[[one, other]]  # type: ignore[index]
        a, b = rows if isinstance(rows, np.ndarray) else rows.toarray()
        length = np.linalg.norm(a) * np.linalg.norm(b)
        return float(a @ b / length) if length else 0.0

    for user, item in table.select("user", "item").iter_rows():
        found = reasons.filter(user=user, item=item)
        if user == "stranger":
            assert found.is_empty()
            continue
        spot, place = items.index(item), users.index(user)
        mine = {i: near(likeness, spot, items.index(i)) for i in seen.get(user, ()) if i != item}
        takers = {
            u: near(nearness, place, users.index(u)) for u in seen if item in seen[u] and u != user
        }
        for kind, all_of in (("purchase", mine), ("neighbour", takers)):
            best = sorted((v for v in all_of.values() if v > 1e-6), reverse=True)[:3]
            told = found.filter(kind=kind)
            assert set(told["reason"]) <= set(all_of)
            assert told["strength"].to_list() == pytest.approx(best, abs=1e-5)
            assert [all_of[r] for r in told["reason"]] == pytest.approx(best, abs=1e-5)
    kinds = set(reasons.filter(user="user:002")["kind"])
    assert kinds == {"purchase", "neighbour"}
    monkeypatch.setattr(recommender, "ENTRIES", 7)
    assert model.why(table, count=3).equals(reasons)
    assert model.why(table.clear()).is_empty()


def test_a_saved_recommender_gives_the_same_lists_and_reasons(
    model: Recommender, tmp_path: Path
) -> None:
    model.save(tmp_path / "model")
    again = load_recommender(tmp_path / "model")
    assert isinstance(again, Recommender)
    users = ["user:001", "user:100", "user:nobody", "stranger"]
    table = model.recommend(users, 9)
    assert again.recommend(users, 9).equals(table)
    assert again.why(table).equals(model.why(table))
    assert repr(again) == repr(model)
    assert (again.kind, again.method, again.dim) == (model.kind, model.method, model.dim)


def test_a_part_without_weight_is_not_saved(model: Recommender, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    saved = {key.partition(".")[0] for key in open_arrays(tmp_path / "model" / "parts.safetensors")}
    weights = model.model.weights
    used = {
        n for n, w in zip(weights.names, weights.values.sum(0) + weights.cold, strict=True) if w
    }
    assert saved - {"weights", "purchases", "popularity"} == used - {"popularity"}


def test_an_altered_recommender_is_refused(
    shop: World, split: PurchaseSplit, tmp_path: Path
) -> None:
    train_recommender(shop.crop, split, PARTS["graph"]).model.save(tmp_path / "model")
    with pytest.raises(MedappsError, match="cannot be used"):
        NcfRecommender.load(tmp_path / "model")
    file = tmp_path / "model" / "parts.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(MedappsError, match=r"parts\.safetensors"):
        Recommender.load(tmp_path / "model")
