"""Notebooks and pipelines run from beginning to end on tiny data."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import jupytext
import polars as pl
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))


def test_there_are_three_notebooks_with_their_twins():
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        text, twin = jupytext.read(path), jupytext.read(path.with_suffix(".ipynb"))
        assert [cell.source for cell in text.cells] == [cell.source for cell in twin.cells]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, monkeypatch, tmp_path):
    monkeypatch.setenv("MEDAPPS_PRESET", "tiny")
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = jupytext.read(path)
    NotebookClient(
        notebook,
        timeout=240,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    outputs = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    assert outputs and not [out for out in outputs if out.output_type == "error"]


def run(script: str, *words: object) -> str:
    command = [sys.executable, str(ROOT / "pipelines" / script), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_graph_prints_a_table_of_both_tasks(tiny_dataset):
    small = ("--dims", 4, 8, "--epochs", 1, "--task-epochs", 1, "--seeds", 1)
    out = run("one_graph.py", tiny_dataset, *small)
    for method in ("med", "dt", "pca", "dualde"):
        assert f"| 4 | 4 | {method} |" in out
    assert "tiny: label" in out and "tiny: recommend" in out


def test_link_prediction_ranks_every_size(tiny_dataset, tmp_path):
    triples = pl.read_parquet(tiny_dataset / "skg.parquet")
    triples[::20].write_parquet(tmp_path / "test.parquet")
    triples.filter(pl.int_range(pl.len()) % 20 != 0).write_parquet(tmp_path / "train.parquet")
    out = run("link_prediction.py", tmp_path, "--dims", 4, 8, "--epochs", 1)
    assert "| 8 | 8 | med |" in out and "| 4 | 4 | dt |" in out and "larger ones keep" in out


def test_recipe_search_tries_every_combination(tiny_dataset, tmp_path):
    triples = pl.read_parquet(tiny_dataset / "skg.parquet")
    data = tmp_path / "small"
    data.mkdir()
    triples[::20].write_parquet(data / "valid.parquet")
    triples.filter(pl.int_range(pl.len()) % 20 != 0).write_parquet(data / "train.parquet")
    small = ("--epochs", 1, "--triples", 50, "--set", "dims=4,8", "--workspace", tmp_path / "w")
    out = run("recipe_search.py", data, *small, "--try", "lr=0.1,0.2", "--try", "distil=0,4")
    assert all(f"lr={lr}/distil={kd}" in out for lr in (0.1, 0.2) for kd in (0, 4))


def test_crop_quality_measures_every_number_type(tiny_dataset, tmp_path):
    triples = pl.read_parquet(tiny_dataset / "skg.parquet")
    linked, social = tmp_path / "fb15k-237", tmp_path / "ciao"
    linked.mkdir()
    triples[::20].write_parquet(linked / "test.parquet")
    triples.filter(pl.int_range(pl.len()) % 20 != 0).write_parquet(linked / "train.parquet")
    shutil.copytree(tiny_dataset, social)
    labels = pl.read_parquet(social / "labels.parquet")
    labels.rename({labels.columns[1]: "join_period"}).write_parquet(social / "labels.parquet")
    small = ("--dims", 4, 8, "--epochs", 1, "--seeds", 1, "--limit", 50, "--no-track")
    out = run("crop_quality.py", "--data", tmp_path, "--workspace", tmp_path / "w", *small)
    for name in ("fb15k237", "ciao"):
        table = pl.read_csv(tmp_path / "w" / f"crop_quality_{name}.csv")
        assert table.select("dim", "dtype").rows() == [
            (dim, kind) for dim in (4, 8) for kind in ("float32", "float16", "int8")
        ]
    assert "ndcg" in out


def test_variants_are_held_against_the_first_one(tiny_dataset, tmp_path):
    triples = pl.read_parquet(tiny_dataset / "skg.parquet").head(2000)
    data = tmp_path / "small"
    data.mkdir()
    triples[::20].write_parquet(data / "test.parquet")
    triples.filter(pl.int_range(pl.len()) % 20 != 0).write_parquet(data / "train.parquet")
    small = ("--set", "train.dims=[4,8]", "--set", "train.epochs=1", "--set", "train.dlw=fixed")
    place = ("--seeds", 0, 1, "--workspace", tmp_path / "w", "--no-track")
    out = run("variants.py", data, "ablation", *small, *place, "--plot", tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 0
    for name in ("med", "no mutual learning", "no evolution", "no loss weights", "mrl"):
        assert f"| {name} |" in out
