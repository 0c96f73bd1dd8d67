"""`medapps doctor` finds what is broken and repairs the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from medapps.cli.main import app


def doctor(*words: str) -> tuple[int, dict, str]:
    result = CliRunner().invoke(app, ["doctor", "--json", *words])
    return result.exit_code, json.loads(result.stdout), result.stderr


def test_a_garbage_store_is_named_and_repair_replaces_it(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"garbage " * 1000)
    words = ("--workspace", str(tmp_path))
    code, values, _ = doctor(*words)
    assert code == 2
    assert any("doctor --repair" in problem for problem in values["problems"])
    code, values, err = doctor(*words, "--repair")
    assert code == 0, values
    aside = next(tmp_path.glob("mlflow.db.broken-*"))
    assert aside.read_bytes() == b"garbage " * 1000
    assert "was broken" in err
    assert "needs no repair" in doctor(*words, "--repair")[2]


def test_a_password_of_the_server_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hush-hush@127.0.0.1:9")
    for words in (["--json"], ["--debug"], []):
        result = CliRunner().invoke(app, ["doctor", "--workspace", str(tmp_path), *words])
        assert result.exit_code == 2
        assert "127.0.0.1:9" in result.output
        assert "hush" not in result.output
