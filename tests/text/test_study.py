"""The study appends a line per result, goes on where it stopped, and fills its page."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import polars as pl
import pytest

PIPELINES = Path(__file__).parents[2] / "pipelines"


def test_a_study_goes_on_and_fills_its_page(monkeypatch, tasks, tiny_bert, tmp_path):
    monkeypatch.syspath_prepend(str(PIPELINES))
    study = importlib.import_module("text_study")
    small = [tasks, "--tasks", "mood", "alike", "--weights", tiny_bert, "--workspace", tmp_path]
    small += ["--methods", "med", "hat", "ext", "--no-track"]
    for item in ("widths=[16,32]", "steps=3", "batch=16"):
        small += ["--set", f"text.{item}"]

    def run(*more: object) -> list[dict]:
        words = ["text_study", *map(str, (*small, *more))]
        monkeypatch.setattr(sys, "argv", words)
        study.main()
        notes = (tmp_path / "text_study.jsonl").read_text().splitlines()
        return [json.loads(line) for line in notes]

    with pytest.raises(SystemExit) as stopped:
        run("--hours", 0)
    assert stopped.value.code == 143
    assert list((tmp_path / "checkpoints").glob("[!.]*"))
    lines = run()
    found = [(line["task"], line["method"], line["width"]) for line in lines]
    each = [("med", 16), ("med", 32), ("hat", 16), ("hat", 32), ("ext", 16)]
    assert found == [(task, *pair) for task in ("mood", "alike") for pair in each]
    assert run() == lines  # nothing is done again
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- study -->\nold\n<!-- /study -->\nbelow\n")
    run("--table", page)
    text = page.read_text()
    assert text.startswith("above\n<!-- study -->") and text.endswith("<!-- /study -->\nbelow\n")
    assert "old" not in text and "| 16 | ext |" in text and "MED minus HAT" in text
    before = text
    run("--table", page)
    assert page.read_text() == before
    assert len(run("--set", "text.lr=1e-3", "--tasks", "mood")) == len(lines) + 5


def test_titles_have_one_frequent_genre(monkeypatch):
    monkeypatch.syspath_prepend(str(PIPELINES))
    titles = importlib.import_module("text_titles")
    items = pl.DataFrame({"item": list("abcde"), "title": list("ABCDE")})
    pairs = [("a", "x"), ("b", "x"), ("c", "x"), ("c", "y"), ("d", "z"), ("e", "x")]
    rows = [(item, "has_genre", f"genre:{genre}") for item, genre in pairs] + [("d", "by", "x")]
    triples = pl.DataFrame(rows, schema=["head", "relation", "tail"], orient="row")
    found = titles.labelled(items, triples, least=3)
    assert found.rows() == [("A", "x"), ("B", "x"), ("E", "x")]
