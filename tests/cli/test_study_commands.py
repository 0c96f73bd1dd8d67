"""run, rank, compare and demo, as a person calls them."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from medapps.cli.main import app

STUDY = """
study: {name: toy, data: [kg], methods: [med, dt], tasks: [rank], seeds: [0, 1]}
train: {dims: [4, 8], epochs: 2, threads: 1}
baseline: {search: {when: "off"}}
"""
ROW = {
    "method", "tier", "dim", "task", "metric", "value", "low", "high", "seeds", "train_seconds",
    "bytes",
}  # fmt: skip


def call(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(word) for word in words], env={"MEDAPPS_DATA": ""})
    return result.exit_code, result.stdout, result.stderr


def values(*words: object) -> dict:
    code, out, err = call(*words, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_dataset) -> Path:
    """A folder with a data set that has test triples, a study file and its finished workspace."""
    root = tmp_path_factory.mktemp("commands")
    triples = pl.read_parquet(tiny_dataset / "skg.parquet").sample(fraction=1, shuffle=True, seed=0)
    (root / "kg").mkdir()
    triples[:300].write_parquet(root / "kg" / "test.parquet")
    triples[300:].write_parquet(root / "kg" / "triples.parquet")
    (root / "toy.yaml").write_text(STUDY)
    done = values("run", root / "toy.yaml", "--data", root, "--workspace", root / "ws")
    assert (done["study"], done["carried_out"], done["skipped"]) == ("toy", 14, 0)
    return root


def test_second_run_skips_everything(place):
    again = values("run", place / "toy.yaml", "--data", place, "--workspace", place / "ws")
    assert (again["carried_out"], again["skipped"]) == (0, 14)
    assert {row["method"] for row in again["rows"]} == {"med", "dt"}


def test_seed_repeats_the_study_with_other_seeds(place, tmp_path):
    one = place / "one.yaml"
    changes = {"name: toy": "name: one", "seeds: [0, 1]": "seeds: [0]", "med, dt": "med"}
    text = STUDY
    for old, new in changes.items():
        text = text.replace(old, new)
    one.write_text(text)
    again = values(
        "run", one, "--data", place, "--workspace", place / "ws", "--seed", 1, "--no-track"
    )
    assert again["carried_out"] == 0 and again["seed"] == 1  # seed 1 was in the study


def test_rank_shows_every_size_of_the_newest_embedding(place):
    found = values("rank", "--workspace", place / "ws")
    assert set(found["dims"]) == {"4", "8"} and 0 <= found["arr"] <= 1
    for metrics in found["dims"].values():
        assert 0 <= metrics["hits_at_1"] <= metrics["hits_at_3"] <= metrics["hits_at_10"] < 1
        assert metrics["effi"] > 0 and metrics["mrr"] > 0
    rows = values("compare", "--workspace", place / "ws", "--no-track")["rows"]
    mine = [r for r in rows if (r["method"], r["dim"], r["metric"]) == ("med", 8, "mrr")]
    assert len(mine) == 1 and mine[0]["seeds"] == 2
    assert found["artifact"].startswith(str(place / "ws" / "reports"))


def test_rank_of_a_baseline_needs_its_size(place):
    assert set(
        values("rank", "--method", "dt", "--dim", 4, "--workspace", place / "ws")["dims"]
    ) == {"4"}
    code, _, err = call("rank", "--method", "dt", "--workspace", place / "ws")
    assert code == 2 and "--dim" in err
    code, _, err = call("rank", "--method", "pca", "--dim", 4, "--workspace", place / "ws")
    assert code == 2 and "medapps baseline pca --dim 4" in err
    code, _, err = call("rank", "--method", "oracle", "--dim", 4, "--workspace", place / "ws")
    assert code == 2


def test_compare_prints_the_promised_rows_and_writes_files(place, tmp_path):
    found = values(
        "compare", "--study", "toy", "--out", tmp_path / "out", "--workspace", place / "ws"
    )
    assert found["rows"] and all(set(row) >= ROW for row in found["rows"])
    assert {row["verdict"] for row in found["rows"] if row["method"] == "dt"} > {None}
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"comparison.md", "comparison.csv", "comparison.json", "kg_rank_bytes.png"} <= names
    code, out, _ = call("compare", "--workspace", place / "ws", "--no-track")
    assert code == 0 and "mrr" in out and "vs med" in out


def test_compare_of_an_empty_workspace_says_what_to_run_first(tmp_path):
    code, out, err = call("compare", "--workspace", tmp_path, "--no-track")
    assert (code, out) == (2, "") and "medapps run FILE" in err


def test_the_dump_of_a_quick_study_has_its_budget_and_what_was_set(place):
    words = ("--quick", "--set", "study.limit=7", "--dump-config")
    code, out, _ = call("run", place / "toy.yaml", *words)
    assert code == 0 and "name: toy-quick" in out and "limit: 7" in out


def test_run_with_a_wrong_key_names_the_right_one(place, tmp_path):
    (tmp_path / "bad.yaml").write_text(STUDY.replace("methods", "method"))
    code, _, err = call("run", tmp_path / "bad.yaml", "--workspace", tmp_path / "ws")
    assert code == 2 and "study.methods" in err and not (tmp_path / "ws").exists()


def test_demo_ends_with_how_to_look_at_it(tmp_path):
    small = (
        "study.data=[{synth: tiny}]", "study.methods=[med, none]", "study.repeats=1",
        "study.tasks=[label, recommend]",
        "train.dims=[4, 8]", "train.epochs=1", "train.threads=1", "label.epochs=2",
        "recommend.ncf.epochs=1",
    )  # fmt: skip
    options = [word for item in small for word in ("--set", item)]
    code, out, err = call("demo", *options, "--workspace", tmp_path, "--no-track")
    assert code == 0, err
    assert out.rstrip().splitlines()[-1].endswith(f"medapps ui --workspace {tmp_path}")
    assert "synth-tiny: label" in out and "synth-tiny: recommend" in out
