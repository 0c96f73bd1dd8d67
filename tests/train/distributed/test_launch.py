"""`torchrun -m medapps train --distributed` from outside: results, a killed rank, bad launches."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from medapps.cli.main import app
from medapps.crop.embedding import Embedding
from medapps.graph.read import read_graph
from tests.train.distributed.launch import launch

OPTIONS = [
    "--distributed", "--dims", "4,12", "--epochs", 4, "--set", "train.batch=500",
    "--set", "train.chunk=250", "--set", "train.negatives=32", "--set", "train.threads=1",
    "--no-track", "--json",
]  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tiny_dataset, tmp_path_factory) -> Path:
    """The small synthetic set with some triples held out to be ranked."""
    folder = tmp_path_factory.mktemp("data") / "tiny"
    shutil.copytree(tiny_dataset, folder)
    triples = pl.read_parquet(folder / "skg.parquet")
    triples[:-100].write_parquet(folder / "skg.parquet")
    triples[-100:].write_parquet(folder / "test.parquet")
    return folder


@pytest.fixture(scope="module")
def trained(dataset, tmp_path_factory) -> tuple[Path, dict]:
    """The workspace of an undisturbed training by two ranks, and what it printed."""
    workspace = tmp_path_factory.mktemp("two")
    command = ["-m", "medapps", "train", "--kg", dataset, "--workspace", workspace, *OPTIONS]
    log = launch(2, *command)
    printed = [line for line in log.splitlines() if line.startswith("{")]
    assert len(printed) == 1, log
    return workspace, json.loads(printed[0])


def medapps(*arguments: object) -> dict:
    """A command in this process, as JSON."""
    got = CliRunner().invoke(app, [str(a) for a in (*arguments, "--json", "--no-track", "-q")])
    assert got.exit_code == 0, got.output
    return json.loads(got.stdout)


def test_ranks_leave_an_ordinary_embedding_that_every_command_reads(trained, dataset, tmp_path):
    workspace, printed = trained
    assert printed["status"] == "ok" and printed["ranks"] == 2 and printed["wire_bytes"] > 0
    assert not any((workspace / "checkpoints").iterdir())
    embedding = Embedding.load(Path(printed["artifact"]), verify=True)
    assert isinstance(embedding.entities, np.memmap)
    assert embedding.entities.shape == (len(embedding.entity_ids), 12)
    assert np.abs(embedding.entities).sum(1).min() > 0  # no row was left out
    alone = tmp_path / "alone"
    single = [option for option in OPTIONS if option not in ("--distributed", "--no-track")]
    one = medapps("train", "--kg", dataset, "--workspace", alone, *single[:-1])
    expected = Embedding.load(Path(one["artifact"]))
    np.testing.assert_allclose(embedding.entities, expected.entities, atol=2e-5)
    mrr = [medapps("rank", "--workspace", one)["dims"]["12"]["mrr"] for one in (workspace, alone)]
    assert mrr[0] == pytest.approx(mrr[1], rel=1e-3)
    cut = medapps("crop", "--dim", 4, "--workspace", workspace)
    assert cut["rows"] == len(embedding.entity_ids)
    short = ["--set", "recommend.ncf.epochs=1"]
    got = medapps("recommend", "--dim", 4, "--workspace", workspace, *short)
    assert 0 < got["full"]["ndcg_at_10"] <= 1


@pytest.mark.parametrize("when", [14, "saving"])
def test_a_killed_rank_costs_nothing(trained, dataset, tmp_path, when):
    """torchrun starts the ranks again; they end with the bytes of the undisturbed training."""
    _, undisturbed = trained
    options = ["train", "--kg", dataset, "--workspace", tmp_path, *OPTIONS]
    module = "tests.train.distributed.odd_rank"
    log = launch(2, "-m", module, "--kill", when, *options, restarts=1)
    assert log.count("exitcode: -9") == 1, log
    steps = int(re.search(r"went on for (\d+) steps", log)[1])
    whole = 4 * math.ceil(len(read_graph(dataset).train) / 500)
    assert 0 < steps < whole, "it began again instead of going on"
    printed = json.loads([line for line in log.splitlines() if line.startswith("{")][-1])
    name = "vectors.safetensors"
    got, expected = (Path(one["artifact"]) / name for one in (printed, undisturbed))
    assert got.read_bytes() == expected.read_bytes()


def test_ranks_that_were_told_different_things_all_end_with_one_sentence(dataset, tmp_path):
    options = ["train", "--kg", dataset, "--workspace", tmp_path, *OPTIONS]
    module = "tests.train.distributed.odd_rank"
    log = launch(2, "-m", module, "--tell", 1, "train.lr=0.07", *options, fails=True)
    sentence = (
        "medapps train: Process 1 has another config than process 0: optimiser.lr=0.07, not 0.2."
    )
    assert log.count(sentence) == 2, log
    assert not any((tmp_path / "embeddings").glob("*")) and "Traceback" not in log.split("E11")[0]


def refused(*arguments: object) -> str:
    got = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert got.exit_code == 2, got.output
    return got.output


def test_distributed_without_torchrun_is_refused(dataset, tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    text = refused("train", "--kg", dataset, "--workspace", tmp_path, *OPTIONS)
    assert "--distributed needs the environment that torchrun sets" in text
    assert "torchrun --nproc-per-node 2 -m medapps train" in text


def test_torchrun_without_distributed_is_refused(dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    single = [option for option in OPTIONS if option != "--distributed"]
    text = refused("train", "--kg", dataset, "--workspace", tmp_path, *single)
    assert "each would do the whole training" in text and "Add --distributed" in text
