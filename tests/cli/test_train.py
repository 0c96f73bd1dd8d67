"""`medapps train` as a person calls it."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from medapps.cli.main import app


def test_a_file_that_is_not_there_is_named_and_ends_with_2(tmp_path: Path) -> None:
    words = ["train", "--kg", str(tmp_path / "nowhere.parquet"), "--workspace", str(tmp_path / "w")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "There is no file" in result.stderr
    assert "nowhere.parquet" in result.stderr
    assert not (tmp_path / "w").exists()


def test_flags_reach_the_settings() -> None:
    words = ["train", "--kg", "x", "--inverse", "--add-interactions", "bought", "--dump-config"]
    out = CliRunner().invoke(app, words).stdout
    assert "inverse: true" in out
    assert "add_interactions: bought" in out
