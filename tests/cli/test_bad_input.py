"""Inputs and options of the commands that cannot be worked with: exit code 2 and a sentence."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from medapps.cli.main import app

QUICK = ["--set", "recommend.ncf.epochs=1", "--set", "label.epochs=1", "--seeds", "1"]


def medapps(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, " ".join(result.stderr.split())


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Path) -> Path:
    folder = tmp_path_factory.mktemp("bad") / "workspace"
    options = ["--dims", "4,8", "--epochs", "1", "--set", "train.threads=1", "--no-track", "-q"]
    code, err = medapps("train", "--kg", tiny_dataset, "--workspace", folder, *options)
    assert code == 0, err
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rank", "--split", "foo"], "no split 'foo'"),
        (["rank", "--limit", "0"], "--limit"),
        (["rank", "--limit", "-1"], "--limit"),
        (["rank", "--candidates", "-1"], "--candidates"),
        (["crop", "--keep", "0"], "between 0 and 1"),
        (["crop", "--keep", "nan"], "between 0 and 1"),
        (["similar", "user:1", "-k", "0"], "-k"),
        (["recommend", "--dim", "4", "-k", "0"], "-k"),
        (["recommend", "--dim", "4", "--seeds", "9" * 40], "--seeds"),
        (["label", "--dim", "4", "--seeds", "9" * 40], "--seeds"),
        (["ui", "--port", "65536"], "--port"),
    ],
)
def test_an_option_out_of_range_ends_with_2(
    workspace: Path, words: list[str], message: str
) -> None:
    code, err = medapps(*words, "--workspace", workspace, "--no-track")
    assert code == 2 and message in err, err


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(workspace: Path, tmp_path: Path) -> None:
    for name in ("kg.parquet", "ids.txt", "ids.csv"):
        os.mkfifo(tmp_path / name)
    pipe, task = tmp_path / "kg.parquet", ["--dim", "4", "--workspace", workspace, "--no-track"]
    users = ["--out", tmp_path / "out.csv", *QUICK]
    for words in (
        ["train", "--kg", pipe, "--workspace", workspace],
        ["label", "--labels", pipe, *task],
        ["recommend", "--interactions", pipe, *task],
        ["crop", "--ids", tmp_path / "ids.txt", *task],
        ["crop", "--ids", tmp_path / "ids.csv", *task],
        ["recommend", "--users", tmp_path / "ids.txt", *task, *users],
    ):
        code, err = medapps(*words)
        assert code == 2 and "is not a regular file" in err, (words, err)


def test_a_list_of_ids_without_columns_or_with_other_values_is_refused(
    workspace: Path, tmp_path: Path
) -> None:
    words = ["crop", "--dim", "4", "--workspace", workspace, "--no-track", "--ids"]
    pl.DataFrame().write_parquet(tmp_path / "none.parquet")
    code, err = medapps(*words, tmp_path / "none.parquet")
    assert code == 2 and "has no columns" in err, err
    pl.DataFrame({"id": [[1], [2]]}).write_parquet(tmp_path / "lists.parquet")
    code, err = medapps(*words, tmp_path / "lists.parquet")
    assert code == 2 and "'id'" in err and "List(Int64)" in err, err


def test_users_that_the_graph_does_not_know_are_told_or_refused(
    workspace: Path, tiny_dataset: Path, tmp_path: Path
) -> None:
    frame = pl.read_parquet(tiny_dataset / "interactions.parquet")
    alien = pl.lit("alien:") + pl.col("user")
    half = pl.when(pl.col("user").hash() % 2 == 0).then(alien).otherwise("user")
    words = ["recommend", "--dim", "4", "--workspace", workspace, "--no-track", *QUICK]
    for name, user in (("all", alien), ("half", half)):
        frame.with_columns(user=user).write_parquet(tmp_path / f"{name}.parquet")
    code, err = medapps(*words, "--interactions", tmp_path / "all.parquet")
    assert code == 2 and "None of the" in err, err
    code, err = medapps(*words, "--interactions", tmp_path / "half.parquet")
    assert code == 0 and "users are not in the graph" in err, err


def test_labels_that_are_empty_are_told_or_refused(
    workspace: Path, tiny_dataset: Path, tmp_path: Path
) -> None:
    frame = pl.read_parquet(tiny_dataset / "labels.parquet").select("user", "segment")
    words = ["label", "--dim", "8", "--workspace", workspace, "--no-track", *QUICK, "--labels"]
    frame.with_columns(segment=pl.lit("  ")).write_parquet(tmp_path / "empty.parquet")
    code, err = medapps(*words, tmp_path / "empty.parquet")
    assert code == 2 and "empty for every user" in err, err
    some = pl.when(pl.int_range(pl.len()) < 20).then(pl.lit("")).otherwise("segment")
    frame.with_columns(segment=some).write_parquet(tmp_path / "some.parquet")
    code, err = medapps(*words, tmp_path / "some.parquet")
    assert code == 0 and "20 users have no value of segment" in err, err
