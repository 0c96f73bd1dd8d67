"""medapps label and recommend on a small synthetic set: the chain by name, and wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from medapps.cli.main import app

QUICK = ["--set", "recommend.ncf.epochs=2", "--set", "label.epochs=3", "--seeds", "2"]


def medapps(*words: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Path) -> Path:
    folder = tmp_path_factory.mktemp("tasks") / "workspace"
    options = ["--dims", "4,8", "--epochs", "2", "--set", "train.threads=1", "--no-track", "-q"]
    code, _, err = medapps("train", "--kg", tiny_dataset, "--workspace", folder, *options)
    assert code == 0, err
    return folder


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Path) -> Path:
    path = tmp_path_factory.mktemp("users") / "users.parquet"
    names = pl.read_parquet(tiny_dataset / "interactions.parquet")["user"].unique().sort()[:5]
    pl.DataFrame({"user": [*names.to_list(), "stranger"]}).write_parquet(path)
    return path


def run_json(*words: str | Path) -> dict:
    code, out, err = medapps(*words, "--json", "-q", "--no-track")
    assert code == 0, err
    return json.loads(out)


def test_label_tells_what_it_promises(workspace: Path, users: Path, tmp_path: Path) -> None:
    out = tmp_path / "labels.csv"
    words = ["label", "--dim", "8", "--label", "segment", "--workspace", workspace, *QUICK]
    told = run_json(*words, "--predict", users, "--out", out)
    assert told["status"] == "ok" and told["label"] == "segment" and told["method"] == "med"
    assert told["users"] == 300 and told["dim"] == 8 and len(told["classes"]) > 1
    assert 0 <= told["f1_macro"] <= 1 and told["accuracy"] == pytest.approx(told["f1_micro"])
    assert set(told["beside"]) == {"majority", "linear_probe", "random", "shuffled"}
    table = pl.read_csv(out)
    assert table["in_graph"].to_list() == [True] * 5 + [False]
    assert set(table["segment"]) <= set(told["classes"]) and told["unknown"] == 1


def test_recommend_tells_what_it_promises(workspace: Path, users: Path, tmp_path: Path) -> None:
    out = tmp_path / "recs.parquet"
    words = ["recommend", "--dim", "4", "--workspace", workspace, *QUICK]
    told = run_json(*words, "--users", users, "-k", "3", "--out", out, "--explain")
    for part in ("full", "sampled"):
        assert {"ndcg_at_5", "ndcg_at_10", "hit_at_10"} <= set(told[part])
    assert told["users"] == 300 and told["items"] == 120 and told["recommended"] == 18
    table = pl.read_parquet(out)
    assert table.columns[:4] == ["user", "item", "rank", "score"]
    assert table["neighbours"].list.len().max() == 3


def test_recommend_without_vectors_needs_interactions_only(
    tiny_dataset: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "interactions.parquet").write_bytes(
        (tiny_dataset / "interactions.parquet").read_bytes()
    )
    words = ["recommend", "--data", bare, "--method", "none", "--workspace", tmp_path / "w", *QUICK]
    told = run_json(*words)
    assert told["method"] == "none" and told["dim"] == 0 and told["data"] == "bare"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["label", "--dim", "7"], "7"),
        (["label", "--dim", "8", "--label", "shoe"], "'shoe' is not there"),
        (["label", "--dim", "8", "--method", "none"], "--method random"),
        (["label", "--dim", "8", "--method", "magic"], "no method 'magic'"),
        (["recommend", "--dim", "4", "--explain"], "--users and --out"),
        (["recommend", "--dim", "4", "--export", "tflite"], "no export 'tflite'"),
    ],
)
def test_wrong_options_end_with_two(workspace: Path, words: list[str], message: str) -> None:
    code, _, err = medapps(*words, "--workspace", workspace, "--no-track", *QUICK)
    assert code == 2 and message in err and "Traceback" not in err


def test_too_many_items_are_refused(workspace: Path, users: Path, tmp_path: Path) -> None:
    words = ["recommend", "--dim", "4", "--workspace", workspace, "--no-track", *QUICK]
    out = tmp_path / "recs.parquet"
    code, _, err = medapps(*words, "--users", users, "-k", "500", "--out", out)
    assert code == 2 and "500 recommendations" in err and not out.exists()


def test_an_output_is_no_input_and_replaces_nothing_unasked(
    workspace: Path, users: Path, tiny_dataset: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.parquet"
    mine.write_bytes((tiny_dataset / "labels.parquet").read_bytes())
    ids, out = tmp_path / "ids.csv", tmp_path / "out.csv"
    pl.read_parquet(users).write_csv(ids)
    out.write_text("precious")
    label = ["label", "--dim", "8", "--labels", mine, "--predict", ids]
    recommend = ["recommend", "--dim", "4", "--users", ids]
    shared = ["--workspace", workspace, "--no-track", *QUICK]
    before = {path: path.read_bytes() for path in (mine, ids, out)}
    for words in (label, recommend):
        code, _, err = medapps(*words, "--out", out, *shared)
        assert code == 2 and "out.csv exists already. Use --force" in err
        code, _, err = medapps(*words, "--out", ids, "--force", *shared)
        assert code == 2 and "ids.csv is an input of this command" in err
    code, _, err = medapps(*label, "--out", mine, "--force", *shared)
    assert code == 2 and "mine.parquet is an input of this command" in err
    link = tmp_path / "link.parquet"
    link.symlink_to(mine)
    code, _, err = medapps(*label, "--out", link, "--force", *shared)
    assert code == 2 and "is an input of this command" in err
    code, _, err = medapps(*label, "--out", tiny_dataset / "labels.parquet", "--force", *shared)
    assert code == 2 and "is a folder that medapps keeps" in err
    code, _, err = medapps(*label, "--out", out / "below.csv", *shared)
    assert code == 2 and "part of the path is a file" in err
    code, _, err = medapps(*label, "--out", tmp_path / ("x" * 300 + ".csv"), *shared)
    assert code == 2 and "file name too long" in err
    assert {path: path.read_bytes() for path in before} == before
    code, _, err = medapps(*label, "--out", out, "--force", *shared)
    assert code == 0 and len(pl.read_csv(out)) == 6


def test_compare_replaces_only_when_told(workspace: Path, tmp_path: Path) -> None:
    shared = ["--workspace", workspace, "--no-track"]
    words = ["label", "--dim", "8", "--label", "segment", *QUICK]
    assert medapps(*words, *shared)[0] == 0
    (tmp_path / "out").mkdir()
    mine = tmp_path / "out" / "comparison.md"
    mine.write_text("my thesis")
    code, _, err = medapps("compare", "--out", tmp_path / "out", *shared)
    assert code == 2 and "comparison.md exists already. Use --force" in err
    assert [path.name for path in mine.parent.iterdir()] == ["comparison.md"]
    assert mine.read_text() == "my thesis"
    assert medapps("compare", "--out", tmp_path / "out", "--force", *shared)[0] == 0
    assert "segment" in mine.read_text() or "label" in mine.read_text()
    assert medapps("compare", "--out", tmp_path / "out", *shared)[0] == 0  # nothing would change


def test_a_bundle_is_no_report(workspace: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    shared = ["--workspace", workspace, "--no-track"]
    words = ["recommend", "--dim", "4", "--model", "ncf-paper", "--export", "onnx", *QUICK]
    for _ in range(2):
        code, _, err = medapps(*words, *shared)
        assert code == 0, err
    code, _, err = medapps("compare", *shared)
    assert code == 0, err
