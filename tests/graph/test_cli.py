"""`medapps data` says the same as the functions behind it, in the contract's words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
from typer.testing import CliRunner, Result

from medapps.cli.main import app

KEYS = {"status", "run_id", "artifact", "seconds", "seed", "entities", "relations", "triples"}
KEYS |= {"users", "items", "interactions", "labels", "problems"}


def call(*words: object) -> Result:
    return CliRunner().invoke(app, ["data", *map(str, words), "--no-track"])


def test_synth_then_check(tmp_path: Path) -> None:
    out = tmp_path / "new" / "tiny"
    made = call("synth", "--out", out, "--preset", "tiny", "--users", 200, "--seed", 3, "--json")
    assert made.exit_code == 0, made.output
    said = json.loads(made.stdout)
    assert set(said) >= KEYS
    assert (said["status"], said["seed"], said["users"], said["triples"]) == ("ok", 3, 200, 2000)
    assert {path.name for path in out.iterdir()} >= {
        "skg.parquet",
        "labels.parquet",
        "interactions.parquet",
        "latents.parquet",
    }
    checked = call("check", out, "--json")
    assert checked.exit_code == 0
    found = json.loads(checked.stdout)
    for key in KEYS - {"seconds", "seed", "artifact"}:
        assert found[key] == said[key], key
    assert "No problems found" in call("check", out).stdout


def test_warnings_end_with_0_and_errors_with_2(tiny_dataset: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiny_dataset, tmp_path / "copy"))
    graph = pl.read_parquet(copy / "skg.parquet")
    pl.concat([graph, graph.head(2)]).write_parquet(copy / "skg.parquet")
    warned = call("check", copy, "--json")
    assert warned.exit_code == 0
    (problem,) = json.loads(warned.stdout)["problems"]
    assert (problem["severity"], problem["what"], problem["count"]) == ("warning", "duplicates", 2)
    assert problem["rows"] == [1, 2, 3001, 3002]
    graph.with_columns(tail=pl.lit(None, pl.String)).write_parquet(copy / "skg.parquet")
    failed = call("check", copy, "--json")
    assert failed.exit_code == 2
    said = json.loads(failed.stdout)
    assert said["status"] == "error" and "'tail' has 3,000" in said["problems"][0]["message"]
    assert set(said) >= KEYS


def test_brackets_in_names_are_printed_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("head,relation,[tail]\na,r,b\n")
    shown = call("check", path)
    assert shown.exit_code == 2
    assert "[tail]" in shown.stdout.replace("\n", "")


def test_check_reads_as_the_settings_say(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("from;r;to\na;r;b\n")
    assert call("check", path).exit_code == 2
    sets = ["--set", "graph.separator=;", "--set", "graph.head=from"]
    sets += ["--set", "graph.relation=1", "--set", "graph.tail=to"]
    good = call("check", path, *sets, "--json")
    assert good.exit_code == 0, good.output
    assert json.loads(good.stdout)["triples"] == 1


def test_an_existing_folder_is_not_replaced_unasked(tmp_path: Path) -> None:
    out = tmp_path / "d"
    small = ["--preset", "tiny", "--users", 100]
    assert call("synth", "--out", out, *small).exit_code == 0
    assert call("synth", "--out", out, *small).exit_code == 0  # the same: kept
    other = call("synth", "--out", out, *small, "--seed", 1)
    assert other.exit_code == 2 and "exists already" in other.stderr
    assert call("synth", "--out", out, *small, "--seed", 1, "--force").exit_code == 0
