"""A stage is run once, heals when its folder is damaged, and opens no run for wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from medapps.baselines.registry import MAKERS
from medapps.cli.main import app
from medapps.crop.crop import load_crop
from medapps.crop.embedding import Embedding
from medapps.errors import MedappsError
from medapps.evaluate.link_prediction import RankOptions
from medapps.graph.graph import Graph
from medapps.methods import BASELINES
from medapps.report import Report
from medapps.settings import Settings
from medapps.stages import Baseline, Runner, baseline_stage, rank_stage, train_stage
from medapps.stages.graph import graph_stage
from medapps.store import Workspace
from medapps.train.session import Session

LOAD = {"graph": Graph.load, "embedding": Embedding.load, "crop": load_crop, "report": Report.load}


def medapps(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, " ".join(result.stderr.split())


def run_all(root: Path, data: Path) -> tuple[dict[str, Path], dict[str, bool]]:
    """A folder of every kind, and which stages had to be run for it."""
    from medapps.baselines.config import BaselineConfig
    from medapps.train.config import MedConfig

    runner = Runner(Workspace(root), tracked=False)
    config = MedConfig(dims=(4, 8), epochs=1, hardware={"threads": 1})
    graph, g = graph_stage(runner, data, Settings())
    embedding, e = train_stage(runner, graph, config, Session())
    _, c = baseline_stage(runner, graph, Baseline("pca", 4, BaselineConfig(), config), Session())
    options = RankOptions("train", candidates=20, limit=20)
    ((_, r), *_) = rank_stage(runner, graph, embedding, options)
    return {"graph": g, "embedding": e, "crop": c, "report": r}, runner.ledger


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Path) -> tuple[Path, dict]:
    root = tmp_path_factory.mktemp("stages") / "w"
    folders, ledger = run_all(root, tiny_dataset)
    assert all(ledger.values())
    return root, folders


@pytest.mark.parametrize("kind", LOAD)
@pytest.mark.parametrize("damage", ["cut", "gone", "altered"])
def test_a_damaged_folder_of_the_workspace_is_made_again(
    kind: str, damage: str, made: tuple[Path, dict], tiny_dataset: Path
) -> None:
    root, folders = made
    manifest = folders[kind] / "manifest.json"
    before = manifest.read_text()
    file = next(path for path in sorted(folders[kind].iterdir()) if path != manifest)
    if damage == "cut":
        manifest.write_text(before[:50])
    elif damage == "gone":
        manifest.unlink()
    else:
        file.write_bytes(b"x" + file.read_bytes()[1:])
    again, ledger = run_all(root, tiny_dataset)
    assert again == folders
    assert sum(ledger.values()) == (0 if kind == "graph" else 1)  # reading is no run of its own
    assert json.loads(manifest.read_text())["files"].keys() == json.loads(before)["files"].keys()
    LOAD[kind](folders[kind])
    assert not any(run_all(root, tiny_dataset)[1].values())


@pytest.mark.parametrize("kind", LOAD)
@pytest.mark.parametrize("version", [1, 2])
def test_what_0_1_0_saved_is_refused_in_one_sentence(
    kind: str, version: int, tmp_path: Path
) -> None:
    values = {
        "kind": kind,
        "format_version": version,
        "about": {"method": "med", "dim": 10},
        "config": {"dims": [10], "lr": 0.1},
        "parents": {},
        "metrics": {},
        "files": {"vectors.safetensors": {"bytes": 3, "sha256": "0" * 64}},
        "seconds": 1.0,
        "bytes": 3,
        "created": "2026-01-01T00:00:00+00:00",
        "medapps_version": "0.1.0",
        "digest": "0" * 64,
    }
    (tmp_path / "manifest.json").write_text(json.dumps(values))
    (tmp_path / "vectors.safetensors").write_text("abc")
    with pytest.raises(MedappsError) as refused:
        LOAD[kind](tmp_path)
    assert str(refused.value) == (
        f"{tmp_path} was made by an older version of medapps. Make the {kind} again with --force."
    )


def test_every_baseline_has_a_maker() -> None:
    assert set(BASELINES) == set(MAKERS)


def test_wrong_input_opens_no_run(made: tuple[Path, dict], tmp_path: Path) -> None:
    root, _ = made
    strangers = pl.DataFrame({"user": ["nobody", "none", "no"] * 3, "item": ["a", "b", "c"] * 3})
    strangers.with_columns(taste=pl.col("item")).drop("item").unique("user").write_parquet(
        tmp_path / "labels.parquet"
    )
    strangers.rename({"item": "thing"}).write_parquet(tmp_path / "purchases.parquet")
    for words in (
        ["label", "--dim", "4", "--label", "shoe"],
        ["label", "--dim", "4", "--labels", tmp_path / "labels.parquet"],
        ["label", "--dim", "5"],
        ["recommend", "--dim", "4", "--interactions", tmp_path / "purchases.parquet"],
        ["recommend", "--dim", "4", "--set", "recommend.list_length=999999"],
        ["baseline", "pca", "--dim", "999"],
        ["crop", "--dim", "5"],
        ["rank", "--split", "foo"],
        ["rank", "--split", "valid"],
    ):
        code, err = medapps(*words, "--workspace", root)
        assert code == 2, (words, err)
    assert not (root / "mlflow.db").exists()
