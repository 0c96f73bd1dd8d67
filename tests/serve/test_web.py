"""The page of `medapps export --web`: its lists are those of Python, and what its folder holds."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_matrix

from medapps.errors import MedappsError
from medapps.graph.ids import IdMap
from medapps.model.rule import ScoreSpec
from medapps.model.rules import RULES
from medapps.recommend.mixture import PARTS, graph_alone
from medapps.recommend.parts.graph_score import GraphScore
from medapps.recommend.recommender import Recommender
from medapps.serve.web.find import Found, Sized
from medapps.serve.web.lists import Page
from medapps.serve.web.write import Wish, export_web
from medapps.store import read_manifest
from tests.serve.shops import Shop, check_same, in_node, shop

needs_node = pytest.mark.skipif(not shutil.which("node"), reason="node runs the page's engine")
IDS = pytest.mark.parametrize("integers", [False, True], ids=["strings", "integers"])


def own_list(model: Recommender, row: int, k: int = 10) -> tuple[list[int], list[float]]:
    """A user's list as `medapps recommend --user` makes it: items as rows, and scores."""
    table = model.recommend(model.users.names(np.array([row])), k)
    return model.items.ids(table["item"]).tolist(), table["score"].to_list()


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """Pages of float32 by type of ids, with all users."""
    root, made = tmp_path_factory.mktemp("pages"), {}

    def page(integers: bool) -> tuple[Shop, Path]:
        if integers not in made:
            folder = root / f"page-{integers}"
            export_web(shop(integers).found, folder, Wish(dtype="float32"))
            made[integers] = folder
        return shop(integers), made[integers]

    return page


@needs_node
@IDS
def test_lists_of_the_page_are_those_of_the_recommender(exact, integers: bool) -> None:  # type: ignore[no-untyped-def]
    made, folder = exact(integers)
    special = made.rows(made.with_both, made.in_graph_alone, made.bought_alone)
    rows = sorted({*special, *range(0, 150, 5)})
    for dim, model in made.sizes.items():
        assert model.model.weights.names == PARTS and model.model.weights.values.all()
        found = in_node(folder, [{"dim": dim, "row": row} for row in rows])
        for row, answer in zip(rows, found, strict=True):
            check_same(answer["items"], answer["scores"], *own_list(model, row))


@needs_node
@IDS
def test_a_new_user_gets_the_list_of_one_with_the_same_purchases(exact, integers: bool) -> None:  # type: ignore[no-untyped-def]
    made, folder = exact(integers)
    (row,) = made.rows(made.bought_alone)
    for dim, model in made.sizes.items():
        assert not model.model.known_users[row]
        bought = model.purchases[row].indices.tolist()
        assert len(bought) > 1
        (answer,) = in_node(folder, [{"dim": dim, "purchases": bought}])
        check_same(answer["items"], answer["scores"], *own_list(model, row))


@needs_node
def test_somebody_without_anything_gets_what_is_popular(exact) -> None:  # type: ignore[no-untyped-def]
    made, folder = exact(False)
    for dim, model in made.sizes.items():
        table = model.recommend(["stranger"], 10)
        (answer,) = in_node(folder, [{"dim": dim, "purchases": []}])
        assert answer["items"] == model.items.ids(table["item"]).tolist()


@needs_node
def test_reasons_of_the_page_are_those_of_the_recommender(exact) -> None:  # type: ignore[no-untyped-def]
    made, folder = exact(False)
    (row,) = made.rows(made.with_both)
    for dim, model in made.sizes.items():
        table = model.recommend([made.with_both], 10)
        why = model.why(table).filter(kind="purchase")
        (answer,) = in_node(folder, [{"dim": dim, "row": row}])
        names = model.items.names()
        for item, reasons in zip(table["item"], answer["reasons"], strict=True):
            assert [names[r] for r in reasons] == why.filter(item=item)["reason"].to_list()


@needs_node
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_python_and_the_page_agree_on_what_the_folder_holds(tmp_path: Path, dtype: str) -> None:
    made, folder = shop(), tmp_path / "page"
    about = export_web(made.found, folder, Wish(dtype=dtype)).about
    page, rows = Page.open(folder), np.arange(about["users"]["count"])
    for dim in made.sizes:
        ids, scores = page.lists(dim, rows)
        found = in_node(folder, [{"dim": dim, "row": row} for row in rows.tolist()])
        for row, answer in enumerate(found):
            check_same(answer["items"], answer["scores"], ids[row].tolist(), scores[row].tolist())
        for bought in ([], [3], [1, 17, 40]):
            (answer,) = in_node(folder, [{"dim": dim, "purchases": bought}])
            ids_new, scores_new = page.newcomer(dim, np.array(bought, int))
            check_same(answer["items"], answer["scores"], ids_new.tolist(), scores_new.tolist())


def test_agreement_counts_the_lists_that_rounding_left_alone(tmp_path: Path) -> None:
    made, folder = shop(), tmp_path / "page"
    told = export_web(made.found, folder, Wish(dtype="int8")).about["sizes"]
    page = Page.open(folder)
    for size in told:
        model = made.sizes[size["dim"]]
        table = model.recommend(model.users.names(), 10)
        true = model.items.ids(table["item"]).reshape(-1, 10)
        mine, _ = page.lists(size["dim"], np.arange(len(true)))
        same = np.mean([list(a) == list(b) for a, b in zip(mine, true, strict=True)])
        alike = np.mean([len({*a} & {*b}) / 10 for a, b in zip(mine, true, strict=True)])
        assert size["agreement"]["same_lists"] == pytest.approx(same)
        assert size["agreement"]["same_items"] == pytest.approx(alike)
        assert 0.5 < same <= 1 and alike > 0.95


SCORERS = [(name, norm) for name, rule in RULES.items() for norm in rule.NORMS]


@needs_node
@pytest.mark.parametrize(("scorer", "norm"), SCORERS, ids=["-".join(case) for case in SCORERS])
def test_every_scorer_has_its_distance_in_the_page(tmp_path: Path, scorer: str, norm: str) -> None:
    rng, users, items, dim = np.random.default_rng(5), 7, 23, 6
    entity, link, _ = RULES[scorer].REALS
    known_items = np.arange(items) != 4
    tables = [rng.standard_normal((n, dim * entity)).astype(np.float32) for n in (users, items)]
    tables[1][4] = 0
    relation = rng.standard_normal(dim * link).astype(np.float32)
    spec = ScoreSpec(scorer, norm, scale=1.3, margin=2.0)
    graph = GraphScore(*tables, relation, spec, np.ones(users, bool), known_items)
    train = csr_matrix((rng.random((users, items)) < 0.2).astype(np.float32))
    mixture = graph_alone(train, csr_matrix(train.shape, dtype=np.float32), graph)
    names = IdMap.of(pl.Series(range(users))), IdMap.of(pl.Series(range(items)))
    model = Recommender(mixture, *names, train, "graph", "med", dim)
    export_web(Found([Sized(model)]), tmp_path / "page", Wish(dtype="float32"))
    found = in_node(tmp_path / "page", [{"dim": dim, "row": row} for row in range(users)])
    for row, answer in enumerate(found):
        check_same(answer["items"], answer["scores"], *own_list(model, row))


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_a_page_for_one_user_holds_nothing_of_the_others(tmp_path: Path, dtype: str) -> None:
    made, model = shop(), shop().sizes[4]
    one, everyone = tmp_path / "one", tmp_path / "everyone"
    manifest = export_web(made.found, one, Wish(for_user=made.with_both, dtype=dtype))
    export_web(made.found, everyone, Wish(dtype=dtype))
    names = model.users.names().to_list()
    assert manifest.about["users"] == {"count": 1, "left_out": len(names) - 1}
    (row,) = made.rows(made.with_both)
    small, large = (b"|".join(f.read_bytes() for f in x.iterdir()) for x in (one, everyone))
    others = [name.encode() for name in names if name != made.with_both]
    assert made.with_both.encode() in small
    assert not [name for name in others if name in small]
    assert all(name in large for name in others)  # the search would find them
    assert Page.open(one).purchases.indices.tolist() == model.purchases[row].indices.tolist()
    buyers = np.flatnonzero(np.diff(model.purchases.indptr))  # without, a vector is nobody's own
    stored = [
        _stored(everyone, dtype, part, buyers) for part in ("collaborative", "gmf", "service")
    ]
    if dtype == "float32":  # four numbers of int8 are found by chance
        stored.append(_stored(everyone, dtype, "graph", buyers))
    for vectors in stored:
        own = vectors.pop(buyers.tolist().index(row))
        assert own in small and own in large
        assert all(vector in large for vector in vectors)
        assert not [vector for vector in vectors if vector in small]


def _stored(folder: Path, dtype: str, part: str, rows: np.ndarray) -> list[bytes]:
    """The bytes of users' vectors as a page with everybody stores them."""
    place = Page.open(folder).size(4)["users"][f"{part}.users"]
    width = place["shape"][1] * np.dtype(dtype).itemsize
    whole = (folder / place["file"]).read_bytes()[place["at"] :]
    return [whole[row * width : (row + 1) * width] for row in rows.tolist()]


@IDS
def test_a_page_for_one_user_has_that_users_list(tmp_path: Path, integers: bool) -> None:
    made = shop(integers)
    for name in (made.with_both, made.in_graph_alone, made.bought_alone):
        folder = tmp_path / name.replace(":", "-")
        export_web(made.found, folder, Wish(for_user=name, dtype="float32"))
        assert json.loads((folder / "users.json").read_text()) == {"ids": [name]}
        for dim, model in made.sizes.items():
            ids, scores = Page.open(folder).lists(dim, np.zeros(1, int))
            check_same(ids[0].tolist(), scores[0].tolist(), *own_list(model, *made.rows(name)))


def test_users_beyond_the_limit_are_left_out_and_counted(tmp_path: Path) -> None:
    made = shop()
    about = export_web(made.found, tmp_path / "a", Wish(users=20)).about
    names = json.loads((tmp_path / "a" / "users.json").read_text())["ids"]
    everybody = made.found.sizes[0].model.users.names().to_list()
    assert about["users"] == {"count": 20, "left_out": len(everybody) - 20}
    assert len(names) == 20 and names == sorted(names) and set(names) <= set(everybody)
    export_web(made.found, tmp_path / "b", Wish(users=20, seed=1))
    assert json.loads((tmp_path / "b" / "users.json").read_text())["ids"] != names


def test_the_worker_keeps_every_file_and_a_new_page_is_a_new_version(tmp_path: Path) -> None:
    made = shop()
    versions = set()
    for users in (20, 30):
        folder = tmp_path / str(users)
        export_web(made.found, folder, Wish(users=users))
        text = (folder / "worker.js").read_text()
        listed = json.loads(text.split("const FILES = ")[1].split(";")[0])
        assert {*listed, "worker.js"} == {path.name for path in folder.iterdir()}
        versions.add(text.split("const VERSION = ")[1].split(";")[0])
    assert len(versions) == 2
    export_web(made.found, folder, Wish(users=30), force=True)
    assert (folder / "worker.js").read_text() == text  # the same content is the same version


def test_tables_that_sizes_share_are_written_once(tmp_path: Path) -> None:
    made = shop()
    sizes = [
        Sized(replace(made.sizes[4], model=replace(made.sizes[4].model), dim=dim)) for dim in (4, 8)
    ]
    about = export_web(Found(sizes), tmp_path / "page", Wish()).about
    one, two = ({*size["files"]} for size in about["sizes"])
    assert len(one - two) == 1  # the users of each size
    for size in about["sizes"]:
        total = sum((tmp_path / "page" / name).stat().st_size for name in size["files"])
        assert size["bytes"] == total


def test_only_a_page_is_replaced_and_only_when_asked(tmp_path: Path) -> None:
    made, folder = shop(), tmp_path / "page"
    export_web(made.found, folder, Wish(users=5))
    before = read_manifest(folder, kind="web").digest
    with pytest.raises(MedappsError, match="exists already"):
        export_web(made.found, folder, Wish(users=6))
    with pytest.raises(MedappsError, match="Nobody knows the user 'x'"):
        export_web(made.found, folder, Wish(for_user="x"), force=True)
    assert read_manifest(folder, kind="web").digest == before
    export_web(made.found, folder, Wish(users=6), force=True)
    assert read_manifest(folder, kind="web").about["users"]["count"] == 6
    (folder / "photo.jpg").write_text("mine")
    with pytest.raises(MedappsError, match=r"photo\.jpg"):
        export_web(made.found, folder, Wish(users=7), force=True)
    assert (folder / "photo.jpg").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["page"]


def test_sizes_of_different_shops_do_not_mix(tmp_path: Path) -> None:
    sizes = [shop().found.sizes[0], shop(integers=True).found.sizes[1]]
    with pytest.raises(MedappsError, match="same users and items"):
        export_web(Found(sizes), tmp_path / "page", Wish())
    assert not (tmp_path / "page").exists()
