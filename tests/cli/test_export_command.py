"""medapps export --web: which recommenders it takes, what it says, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from medapps.cli.main import app
from medapps.report import Report
from medapps.serve.web.lists import Page
from medapps.store import Provenance, Workspace
from tests.serve.shops import QUALITY, shop


def medapps(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [*map(str, words), "--no-track"])
    return result.exit_code, result.stdout, result.stderr


def run_json(*words: object) -> dict:
    code, out, err = medapps(*words, "--json", "-q")
    assert code == 0, err
    return json.loads(out)


def keep(root: Path, key: str, dim: int, split: str = "s", reported: bool = True) -> None:
    """A recommender of the small shop in a workspace, under a name of its own."""
    workspace, model = Workspace(root), shop().sizes[dim]
    model.save(workspace.folder("recommender", key), Provenance(parents={"split": split}))
    if reported:
        metrics = {f"full.{name}": [value + dim / 100] for name, value in QUALITY.items()}
        report = Report(task="recommend", method="med", dim=dim, data="small", by_seed=metrics)
        report.save(workspace.folder("report", key))


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "workspace"


def test_a_page_has_the_newest_recommender_of_every_size(root: Path, tmp_path: Path) -> None:
    keep(root, "b-old", 4, reported=False)
    keep(root, "z-other-purchases", 2, split="other")
    keep(root, "c", 2)
    keep(root, "a-new", 4)
    told = run_json("export", "--web", tmp_path / "page", "--workspace", root, "--users", 50)
    assert told["status"] == "ok" and told["artifact"] == str(tmp_path / "page")
    assert [size["dim"] for size in told["sizes"]] == [2, 4]
    assert [size["quality"]["ndcg_at_10"] for size in told["sizes"]] == pytest.approx([0.27, 0.29])
    assert told["data"] == "small" and told["items"] == 60 and told["dtype"] == "int8"
    assert (told["users"], told["users_left_out"]) == (50, 102)
    assert told["bytes"] > max(size["bytes"] for size in told["sizes"])
    assert all(0 < size["agreement"]["same_lists"] <= 1 for size in told["sizes"])


def test_a_size_without_a_report_has_no_quality(root: Path, tmp_path: Path) -> None:
    keep(root, "a", 2, reported=False)
    code, out, err = medapps("export", "--web", tmp_path / "page", "--workspace", root)
    assert code == 0, err
    assert "–" in out and "http.server" in out
    assert Page.open(tmp_path / "page").size(2)["quality"] is None


def test_wrong_input_is_refused_with_a_way_out(root: Path, tmp_path: Path) -> None:
    page = tmp_path / "page"
    code, _, err = medapps("export", "--web", page, "--workspace", root)
    assert code == 2 and "medapps recommend --dim 10" in err
    keep(root, "a", 2)
    for words, said in (
        (["--for-user", "nobody"], "user:000"),
        (["--for-user", "user:000", "--users", 5], "--users"),
        (["--dtype", "int4"], "int8 or float32"),
    ):
        code, _, err = medapps("export", "--web", page, "--workspace", root, *words)
        assert code == 2 and said in err
        assert not page.exists()
    page.mkdir()
    (page / "mine.txt").write_text("keep")
    code, _, err = medapps("export", "--web", page, "--workspace", root, "--force")
    assert code == 2 and "not a medapps folder" in err
    assert (page / "mine.txt").read_text() == "keep"


def test_a_page_for_one_user_by_command(root: Path, tmp_path: Path) -> None:
    keep(root, "a", 2)
    words = ["export", "--web", tmp_path / "page", "--workspace", root]
    told = run_json(*words, "--for-user", "user:003", "--dtype", "float32")
    assert (told["users"], told["users_left_out"]) == (1, 151)
    assert json.loads((tmp_path / "page" / "users.json").read_text())["ids"] == ["user:003"]


@pytest.mark.slow
def test_from_a_data_set_to_a_page_with_names(tiny_dataset: Path, tmp_path: Path) -> None:
    data, root = tmp_path / "shop", tmp_path / "workspace"
    data.mkdir()
    for name in ("skg.parquet", "interactions.parquet"):
        (data / name).write_bytes((tiny_dataset / name).read_bytes())
    items = pl.read_parquet(data / "interactions.parquet")["item"].unique().sort()
    names = pl.DataFrame({"item": items, "title": [f"Thing {i}" for i in range(len(items))]})
    names[3:].write_parquet(data / "items.parquet")
    quick = ["--epochs", "2", "--set", "train.threads=1", "-q", "--workspace", root]
    assert medapps("train", "--kg", data, "--dims", "4,8", *quick)[0] == 0
    parts = "recommend.parts=[collaborative,graph,popularity]"
    quality = [
        run_json("recommend", "--dim", dim, "--workspace", root, "--set", parts)["full"]
        for dim in (4, 8)
    ]
    told = run_json("export", "--web", tmp_path / "page", "--workspace", root, "--dtype", "float32")
    assert told["data"] == "shop"
    assert [size["quality"]["ndcg_at_10"] for size in told["sizes"]] == pytest.approx(
        [found["ndcg_at_10"] for found in quality]
    )
    titles = json.loads((tmp_path / "page" / "items.json").read_text())
    assert titles["ids"] == items.to_list()
    assert titles["titles"] == [None] * 3 + [f"Thing {i}" for i in range(3, len(items))]
    users = json.loads((tmp_path / "page" / "users.json").read_text())["ids"]
    words = ["recommend", "--dim", 8, "--workspace", root, "--set", parts, "--user", users[7]]
    listed = run_json(*words)["recommendations"]
    ids, scores = Page.open(tmp_path / "page").lists(8, np.array([7]))
    assert items.gather(ids[0]).to_list() == [line["item"] for line in listed]
    assert scores[0] == pytest.approx([line["score"] for line in listed], abs=1e-3)
