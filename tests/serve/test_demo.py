"""`medapps demo` leaves models for `medapps serve`, which answers what the commands write."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from medapps.cli.main import app as program
from tests.serve.asking import app_of, ask

pytestmark = pytest.mark.filterwarnings("default")  # those of mlflow and what it imports
SMALL = (
    "study.data=[{synth: tiny}]", "study.methods=[med]", "study.repeats=1",
    "study.tasks=[{task: label, dims: [8]}, {task: recommend, dims: [4]}]",
    "train.dims=[4, 8]", "train.epochs=1", "train.threads=1", "label.epochs=2",
    "crop.tiers.tablet.dim=8",
)  # fmt: skip


def call(*words: object) -> None:
    result = CliRunner().invoke(program, [str(word) for word in words])
    assert result.exit_code == 0, result.stderr


@pytest.mark.slow
def test_what_the_demo_leaves_is_served_as_the_commands_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    settings = [word for item in SMALL for word in ("--set", item)]
    root = tmp_path / "ws"
    call("demo", *settings, "--workspace", root)
    app, _ = app_of(root)
    names = ask(app, "/healthz").json["models"]
    assert names["/vectors"]["alias"] == "tablet"
    assert names["/labels"]["alias"] == "gender-dim-8"
    assert names["/recommendations"]["alias"] == "dim-4"
    lists, labels = tmp_path / "lists.parquet", tmp_path / "labels.parquet"
    more = ("--workspace", root, "--set", "label.epochs=2", "--set", "label.controls=false")
    call("recommend", "--dim", 4, "--users", "all", "--out", lists, "-k", 5, *more)
    written = pl.read_parquet(lists)
    users = written["user"].unique(maintain_order=True)
    assert len(users) == 300
    reply = ask(app, "/recommendations", {"users": users.to_list(), "k": 5}).json["users"]
    items = [item["item"] for one in reply for item in one["items"]]
    assert items == written["item"].to_list()
    scores = [item["score"] for one in reply for item in one["items"]]
    assert scores == pytest.approx(written["score"].to_list(), abs=1e-3)
    users.to_frame().write_csv(tmp_path / "users.csv")
    asked = ("--predict", tmp_path / "users.csv", "--out", labels)
    call("label", "--dim", 8, "--seeds", 1, *asked, *more)
    reply = ask(app, "/labels", {"users": users.to_list()}).json["users"]
    assert [one["label"] for one in reply] == pl.read_parquet(labels)["gender"].to_list()
    before = app_of(root)[1].get("recommender")
    assert before is not None and before.version.number == 1  # nothing was registered twice
