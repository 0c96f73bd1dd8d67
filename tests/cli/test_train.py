"""`medapps train` as a person calls it."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from medapps.cli.main import app
from medapps.crop.crop import load_crop
from medapps.model.rules import RULES


def test_a_file_that_is_not_there_is_named_and_ends_with_2(tmp_path: Path) -> None:
    words = ["train", "--kg", str(tmp_path / "nowhere.parquet"), "--workspace", str(tmp_path / "w")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "There is no file" in result.stderr
    assert "nowhere.parquet" in result.stderr
    assert not (tmp_path / "w").exists()


def test_flags_reach_the_settings() -> None:
    words = ["train", "--kg", "x", "--inverse", "--no-interactions", "--dump-config"]
    out = CliRunner().invoke(app, words).stdout
    assert "inverse: true" in out
    assert "interactions: 'off'" in out


@pytest.mark.parametrize("scorer", ["rotate", "pairre", "simple"])
def test_another_scorer_goes_from_training_to_the_device(scorer, tiny_dataset, tmp_path) -> None:
    """Relations narrower and wider than entities: train, crop, rank and a baseline know it."""
    triples = pl.read_parquet(tiny_dataset / "skg.parquet").head(1500)
    (tmp_path / "kg").mkdir()
    triples[:200].write_parquet(tmp_path / "kg" / "test.parquet")
    triples[200:].write_parquet(tmp_path / "kg" / "triples.parquet")

    def values(*words: str) -> dict:
        place = ("--workspace", str(tmp_path / "w"), "--json", "--no-track")
        result = CliRunner().invoke(app, [*words, *place])
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    short = ("--set", "train.epochs=1", "--set", "train.threads=1", "--set", "train.dims=[4,8]")
    chosen = ("--set", f"train.scorer={scorer}")
    trained = values("train", "--kg", str(tmp_path / "kg"), "--scorer", scorer, *short)
    assert trained["scorer"] == scorer
    reals = RULES[scorer].REALS
    crop = values("crop", "--dim", "4", "--dtype", "int8")
    device = load_crop(Path(crop["artifact"]))
    assert device.spec.scorer == scorer and device.width == 4 * reals[0]
    assert 0 < values("rank")["dims"]["4"]["mrr"] <= 1
    made = values(
        "baseline", "bkd", "--dim", "4", "--kg", str(tmp_path / "kg"), *short, *chosen,
        "--set", "baseline.search.when=off",
    )  # fmt: skip
    assert load_crop(Path(made["artifact"])).spec.scorer == scorer


def test_an_unknown_scorer_names_the_known_ones(tiny_dataset, tmp_path) -> None:
    words = ["train", "--kg", str(tiny_dataset), "--scorer", "rotat", "--workspace", str(tmp_path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2 and "transe, rotate, pairre" in result.stderr.replace("\n", " ")
