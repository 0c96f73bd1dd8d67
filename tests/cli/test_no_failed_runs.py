"""Wrong input is refused before a run is opened: MLflow keeps no failed runs of it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from medapps.cli.main import app

SHORT = ["--dims", "4,8", "--epochs", "1", "--set", "train.threads=1", "--set", "train.batch=512"]


def medapps(workspace: Path, *words: str | Path) -> tuple[int, str, str]:
    place = ["--workspace", str(workspace)]
    result = CliRunner().invoke(app, [*map(str, words), *place])
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


def runs(workspace: Path) -> list[str]:
    """The states of all runs in the workspace's store."""
    store = workspace / "mlflow.db"
    if not store.is_file():
        return []
    with sqlite3.connect(store) as database:
        return [row[0] for row in database.execute("select status from runs")]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Path) -> Path:
    """A graph of its own without purchases in it, and tables that do not fit it."""
    folder = tmp_path_factory.mktemp("files")
    labels = pl.read_parquet(tiny_dataset / "labels.parquet")
    labels.rename({"user": "id"}).write_parquet(folder / "no_user.parquet")
    strangers = labels.with_columns(user=pl.lit("x") + pl.col("user"))
    strangers.write_parquet(folder / "alien.parquet")
    bought = pl.read_parquet(tiny_dataset / "interactions.parquet")
    bought.drop("item").write_parquet(folder / "no_item.parquet")
    pl.DataFrame({"id": ["nobody"]}).write_csv(folder / "ids.csv")
    return folder


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Path) -> Path:
    folder = tmp_path_factory.mktemp("failed") / "workspace"
    words = ["train", "--kg", tiny_dataset, "--no-interactions", *SHORT, "--no-track", "-q"]
    code, _, err = medapps(folder, *words)
    assert code == 0, err
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--kg", "{data}", "--set", "graph.head=from"], "no column 'from'"),
        (["train", "--kg", "{data}", "--device", "cuda", *SHORT], "--device cpu"),
        (["rank"], "nothing to rank"),
        (["rank", "--split", "valid"], "no valid triples"),
        (["crop", "--dim", "5"], "5"),
        (["crop", "--dim", "4", "--ids", "{files}/ids.csv"], "nobody"),
        (["crop", "--dim", "4", "--ids", "{files}/ids.csv", "--users-only"], "exclude each other"),
        (["label", "--dim", "5"], "5"),
        (["label", "--dim", "4", "--labels", "{files}/no_user.parquet"], "no column 'user'"),
        (["label", "--dim", "4", "--labels", "{files}/alien.parquet"], "None of the"),
        (["label", "--dim", "4", "--label", "nothing"], "'nothing'"),
        (["recommend", "--dim", "4", "--interactions", "{files}/no_item.parquet"], "'item'"),
        (["recommend", "--dim", "4", "--set", "recommend.list_length=100000"], "catalogue"),
        (["recommend", "--dim", "4", "--model", "graph"], "relation takes"),
        (["baseline", "ext-l", "--dim", "4"], "train.patience"),
        (["baseline", "ta", "--dim", "4", "--set", "baseline.ta.dim=8"], "not between"),
        (["baseline", "dt", "--dim", "4", "--search", "on", "--set", "train.fraction=0"], "margin"),
        (["baseline", "pca", "--dim", "8"], "not fewer"),
    ],
)
def test_wrong_input_ends_with_2_and_opens_no_run(
    workspace: Path, files: Path, tiny_dataset: Path, words: list[str], message: str
) -> None:
    given = [word.format(data=tiny_dataset, files=files) for word in words]
    code, _, err = medapps(workspace, *given)
    assert code == 2 and message in err, err
    assert runs(workspace) == []


def test_rank_takes_what_the_training_held_out(tmp_path: Path, tiny_dataset: Path) -> None:
    quiet = ["--no-interactions", *SHORT, "--no-track"]
    code, out, err = medapps(tmp_path, "train", "--kg", tiny_dataset, *quiet)
    assert code == 0 and "rank" not in out.partition("Next:")[2], err
    held = ["--set", "train.patience=2", "--set", "train.fraction=0.01"]
    code, out, _ = medapps(tmp_path, "train", "--kg", tiny_dataset, *quiet, *held)
    assert code == 0 and "medapps rank" in out
    code, out, err = medapps(tmp_path, "rank", "--no-track", "--json")
    found = json.loads(out)
    assert code == 0 and found["split"] == "held-out" and "held-out triples" in err
    triples = len(pl.read_parquet(tiny_dataset / "skg.parquet").unique())
    assert found["triples"] == round(0.01 * triples)
    code, out, err = medapps(tmp_path, "baseline", "ext-l", "--dim", "4", "--no-track", "--json")
    assert code == 0 and "triples that MED holds out" in err, err
