"""`medapps baseline`: what it prints, what it keeps, and what it makes only once."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from medapps.cli.main import app
from medapps.crop.crop import load_crop
from tests.baselines.conftest import make_graph

QUICK = [
    "train.epochs=1",
    "train.dims=[4,16]",
    "train.batch=256",
    "train.chunk=128",
    "train.negatives=16",
    "train.threads=1",
    "baseline.search.when=off",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plane")
    graph = make_graph()
    for split, name in (("train", "triples"), ("valid", "valid"), ("test", "test")):
        triples = getattr(graph, split)
        pl.DataFrame(
            {
                "head": graph.entities.names(triples[:, 0]),
                "relation": graph.relations.names(triples[:, 1]),
                "tail": graph.entities.names(triples[:, 2]),
            }
        ).write_parquet(folder / f"{name}.parquet")
    return folder


def run(workspace: Path, *words: str, track: bool = False) -> tuple[int, dict, str]:
    sets = [word for item in QUICK for word in ("--set", item)]
    more = ["--workspace", str(workspace), "--json", *([] if track else ["--no-track"])]
    result = CliRunner().invoke(app, ["baseline", *sets, *words, *more])
    return result.exit_code, json.loads(result.stdout), result.stderr


def kept(workspace: Path) -> set[tuple[str, int]]:
    crops = (load_crop(path) for path in (workspace / "crops").iterdir() if path.is_dir())
    return {(crop.method, crop.dim) for crop in crops}


def test_a_baseline_is_printed_kept_and_found_again(data: Path, tmp_path: Path) -> None:
    code, first, _ = run(tmp_path, "pca", "--dim", "4", "--kg", str(data))
    assert code == 0 and first["status"] == "ok"
    assert (first["method"], first["dim"]) == ("pca", 4)
    assert first["train_seconds"] == first["own_seconds"] + first["teacher_seconds"] > 0
    assert kept(tmp_path) == {("dt", 16), ("pca", 4)}
    crop = load_crop(Path(first["artifact"]))
    assert crop.entities.shape == (150, 4) and crop.manifest is not None
    assert set(crop.manifest.parents) == {"graph", "teacher"}

    _, again, remarks = run(tmp_path, "pca", "--dim", "4")  # the newest graph is meant
    assert again["artifact"] == first["artifact"] and "done before" in remarks
    assert again["train_seconds"] == first["train_seconds"]


def test_teachers_and_steps_are_made_once_and_shared(data: Path, tmp_path: Path) -> None:
    run(tmp_path, "iterde", "--dim", "4", "--kg", str(data))
    assert kept(tmp_path) == {("dt", 16), ("iterde", 8), ("iterde", 4)}
    _, values, remarks = run(tmp_path, "iterde", "--dim", "8")
    assert "iterde/8/train/0: done before" in remarks.replace("\n", "")
    about = load_crop(Path(values["artifact"])).about
    assert about["teacher"] == {"method": "dt", "dim": 16}

    made = {path: path.stat().st_mtime_ns for path in tmp_path.glob("crops/*/manifest.json")}
    run(tmp_path, "iterde", "--dim", "4", "--force")
    changed = [path for path, time in made.items() if path.stat().st_mtime_ns != time]
    assert len(changed) == 1 and load_crop(changed[0].parent).dim == 4
    assert not list(tmp_path.glob("checkpoints/*"))


def test_the_run_carries_the_tags_of_a_study(data: Path, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    from medapps.tracking import tracking_uri

    code, values, _ = run(tmp_path, "dt", "--dim", "4", "--kg", str(data), track=True)
    assert code == 0
    found = MlflowClient(tracking_uri(tmp_path)).get_run(values["run_id"])
    tags = {key: found.data.tags[key] for key in ("method", "dim", "task", "data", "seed")}
    assert tags == {
        "method": "dt", "dim": "4", "task": "train", "data": data.name, "seed": "0"
    }  # fmt: skip
    assert found.info.run_name == "dt/4/train/0"
    assert found.data.metrics["train_seconds"] == pytest.approx(values["train_seconds"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["dual", "--dim", "4"], "did you mean 'dualde'?"),
        (["bkd", "--dim", "16"], "not fewer than the teacher's 16"),
        (["pca", "--dim", "9", "--teacher-dim", "9"], "not fewer than the teacher's 9"),
        (["dt", "--dim", "4", "--search", "maybe"], "baseline.search.when"),
    ],
)
def test_wrong_input_ends_with_2_and_leaves_nothing(
    data: Path, tmp_path: Path, words: list[str], sentence: str
) -> None:
    code, values, _ = run(tmp_path, *words, "--kg", str(data))
    assert code == 2 and sentence in values["error"]
    assert not (tmp_path / "crops").exists()


def test_an_empty_workspace_says_what_to_do(tmp_path: Path) -> None:
    code, values, _ = run(tmp_path, "pca", "--dim", "4")
    assert code == 2 and "--kg" in values["error"]


def test_a_search_that_ends_at_an_edge_is_said(data: Path, tmp_path: Path) -> None:
    asked = ["when=on", "margins=[1]", "rates=[0.001]", "further=0", "epochs=1", "triples=20"]
    sets = [word for item in asked for word in ("--set", f"baseline.search.{item}")]
    code, found, _ = run(tmp_path, "dt", "--dim", "4", "--kg", str(data), *sets)
    assert code == 0 and found["search_at_edge"] == ["lr"]


def settings_of(workspace: Path, *words: str) -> dict:
    """The training settings of a dt that `medapps baseline` made, and what it says of them."""
    place = ["--workspace", str(workspace), "--json", "--no-track"]
    result = CliRunner().invoke(app, ["baseline", "dt", "--dim", "4", *words, *place])
    assert result.exit_code == 0, result.stderr
    manifest = load_crop(Path(json.loads(result.stdout)["artifact"])).manifest
    assert manifest is not None
    return manifest.config["train"] | {"said": " ".join(result.stderr.split())}


def test_a_baseline_trains_as_the_embedding_that_it_is_compared_with(
    data: Path, tmp_path: Path
) -> None:
    def train(*words: str) -> str:
        sets = [word for item in QUICK[1:] for word in ("--set", item)]
        place = ["--kg", str(data), "--workspace", str(tmp_path), "--json", "--no-track"]
        result = CliRunner().invoke(app, ["train", *sets, *words, *place])
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)["artifact"]

    off = ("--search", "off")
    first = train("--epochs", "2", "--set", "train.lr=0.4")
    newest = train("--epochs", "1", "--set", "train.loss.margin=[3.0,5.0]")
    found = settings_of(tmp_path, *off)
    assert found["epochs"] == 1 and found["sampling"]["negatives"] == 16
    assert found["loss"]["margin"] == 3.0 and Path(newest).name in found["said"]
    found = settings_of(tmp_path, "--embedding", first, *off)
    assert found["epochs"] == 2 and Path(first).name in found["said"]
    assert found["optimiser"]["lr"] == pytest.approx(0.4 * 4**0.25)  # as alone() raises it
    found = settings_of(tmp_path, "--kg", str(data), "--epochs", "3", *off)
    assert found["epochs"] == 3 and found["sampling"]["negatives"] == 16
    found = settings_of(tmp_path, "--set", "train.scorer=rotate", *off)
    assert found["scorer"] == "rotate" and found["loss"]["margin"] != 3.0
