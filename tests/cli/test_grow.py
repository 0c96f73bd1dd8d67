"""`medapps grow` as a shop calls it: new triples at night, new models in the morning."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from medapps.cli.main import app
from medapps.crop.embedding import Embedding
from medapps.graph.graph import Graph
from medapps.graph.split import TRAIN, PurchaseSplit
from medapps.store import Workspace

SHORT = ("--set", "train.dims=[4,8]", "--set", "train.epochs=3", "--set", "train.threads=1")


def run(root: Path, *words: str | Path) -> tuple[int, dict, str]:
    words = (*words, "--workspace", root / "w", "--json", "--no-track")
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, json.loads(result.stdout or "{}"), result.stderr


def ok(root: Path, *words: str | Path) -> dict:
    code, values, errors = run(root, *words)
    assert code == 0, errors
    return values


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Path) -> Path:
    """A shop before and after a night: `day` without twenty users and a few items, `night` new."""
    root = tmp_path_factory.mktemp("grow")
    triples = pl.read_parquet(tiny_dataset / "skg.parquet")
    bought = pl.read_parquet(tiny_dataset / "interactions.parquet")
    late = bought["user"].unique().sort()[::15].to_list()
    late += bought["item"].unique().sort()[::20].to_list()
    new = pl.col("head").is_in(late) | pl.col("tail").is_in(late)
    for name, rows in (("day", triples.filter(~new)), ("night", triples.filter(new))):
        (root / name).mkdir()
        rows.write_parquet(root / name / "skg.parquet")
    new = pl.col("user").is_in(late) | pl.col("item").is_in(late)
    bought.filter(~new).write_parquet(root / "day" / "interactions.parquet")
    bought.filter(new).write_parquet(root / "night" / "interactions.parquet")
    labels = pl.read_parquet(tiny_dataset / "labels.parquet")
    labels.filter(~pl.col("user").is_in(late)).write_parquet(root / "day" / "labels.parquet")
    trained = ok(root, "train", "--kg", root / "day", *SHORT)
    (root / "before").write_text(trained["artifact"])
    return root


def test_new_users_come_in_and_all_tasks_go_on(shop: Path) -> None:
    before = Embedding.load(Path((shop / "before").read_text()))
    grown = ok(shop, "grow", "--kg", shop / "night")
    after = Embedding.load(Path(grown["artifact"]))
    late = pl.read_parquet(shop / "night" / "interactions.parquet")
    assert grown["new_entities"] == len(after.entities) - len(before.entities) > 20
    assert grown["dims"] == [4, 8] and grown["scorer"] == "transe" and grown["new_triples"] > 0
    assert grown.keys() >= {"epochs", "train_seconds", "peak_rss_bytes", "loss"}
    assert np.array_equal(after.entities[: len(before.entities)], before.entities)
    assert after.manifest.parents["embedding"] == before.manifest.digest
    graph = Graph.load(next(f for f in Workspace(shop / "w").saved("graph")
                            if Graph.load(f).digest == after.graph_digest))  # fmt: skip
    names = graph.entities.names(graph.users)
    assert names.str.starts_with("user:").all()
    unknown = ~pl.Series(before.entity_ids.ids(late["user"]) >= 0)
    stranger = late.filter(unknown)["user"][0]
    (shop / "users.txt").write_text(stranger + "\n")

    crop = ok(shop, "crop", "--dim", "4")
    assert crop["artifact"]
    labels = ok(shop, "label", "--dim", "4", "--predict", shop / "users.txt", "--out",
                shop / "labels.csv", "--seeds", "1")  # fmt: skip
    assert labels["unknown"] == 0 and pl.read_csv(shop / "labels.csv")["in_graph"].all()
    lists = ok(shop, "recommend", "--dim", "4", "--user", stranger)
    assert len(lists["recommendations"]) == 10
    again = ok(shop, "grow", "--kg", shop / "night")  # a second call has nothing to do
    assert again["artifact"] == grown["artifact"]


def test_purchases_of_the_night_obey_the_split_of_the_day(shop: Path) -> None:
    grown = ok(shop, "grow", "--kg", shop / "night", "--embedding", (shop / "before").read_text())
    after = Embedding.load(Path(grown["artifact"]))
    workspace = Workspace(shop / "w")
    graph = next(g for f in workspace.saved("graph")
                 if (g := Graph.load(f)).digest == after.graph_digest)  # fmt: skip
    splits = [PurchaseSplit.load(folder) for folder in workspace.saved("split")]
    day = min(splits, key=lambda s: len(s.pairs))
    night = max(splits, key=lambda s: len(s.pairs))
    held = {tuple(row) for row in day.table(1, 2).rows()}
    assert held and held <= {tuple(row) for row in night.table(1, 2).rows()}
    takes = graph.relations.ids(["takes"])[0]
    rows = graph.train[graph.train[:, 1] == takes]
    ends = zip(graph.entities.names(rows[:, 0]), graph.entities.names(rows[:, 2]), strict=True)
    assert set(ends) == {tuple(row) for row in night.table(TRAIN).rows()}


def test_a_refresh_takes_the_old_state(shop: Path) -> None:
    before = Embedding.load(Path((shop / "before").read_text()))
    words = ("grow", "--kg", shop / "night", "--embedding", (shop / "before").read_text())
    made = ok(shop, *words, "--refresh", "--epochs", "1")
    after = Embedding.load(Path(made["artifact"]))
    assert made["epochs"] == 1
    assert not np.array_equal(after.entities[: len(before.entities)], before.entities)


def test_wrong_input_is_one_sentence(shop: Path, tmp_path: Path) -> None:
    start = (shop / "before").read_text()

    def refused(frame: pl.DataFrame) -> str:
        frame.write_parquet(tmp_path / "new.parquet")
        words = ("grow", "--kg", tmp_path / "new.parquet", "--embedding", start)
        code, values, errors = run(shop, *words)
        assert code == 2 and values["status"] == "error"
        return " ".join(errors.split())

    names = Embedding.load(Path(start)).entity_ids.names()
    assert "has no column 'tail'" in refused(pl.DataFrame({"head": ["a"], "relation": ["r"]}))
    friends = {"head": [names[0]], "relation": ["knows"], "tail": [names[1]]}
    assert "mixed with string ids" in refused(pl.DataFrame(friends | {"head": [1], "tail": [2]}))
    kinds = Embedding.load(Path(start)).relation_ids.names()
    known = {"head": [names[5]], "relation": [kinds[0]], "tail": [names[0]]}
    assert "--refresh" in refused(pl.DataFrame(known))
    words = ("grow", "--kg", shop / "night", "--embedding", start, "--set", "train.dims=[4]")
    code, _, errors = run(shop, *words)
    assert code == 2 and "stay when it grows" in errors


def test_an_unknown_relation_is_learned_and_said(shop: Path, tmp_path: Path) -> None:
    start = (shop / "before").read_text()
    names = Embedding.load(Path(start)).entity_ids.names()
    frame = {"head": ["user:new"] * 2, "relation": ["adores"] * 2, "tail": names[:2].to_list()}
    pl.DataFrame(frame).write_parquet(tmp_path / "new.parquet")
    words = ("grow", "--kg", tmp_path / "new.parquet", "--embedding", start)
    code, values, errors = run(shop, *words)
    assert code == 0 and "adores" in errors
    assert Embedding.load(Path(values["artifact"])).relation_ids.ids(["adores"])[0] >= 0


def test_the_commands_of_the_page_work(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[2] / "docs" / "grow.md"
    lines = [line.strip() for line in page.read_text().splitlines()]
    commands = [line.partition("#")[0].split()[1:] for line in lines if line.startswith("medapps ")]
    assert {"train", "grow", "crop", "label", "recommend"} <= {words[0] for words in commands}
    for part in ("day", "night"):
        (tmp_path / part).symlink_to(shop / part)
    late = pl.read_parquet(shop / "night" / "skg.parquet")["head"]
    (tmp_path / "users.txt").write_text(late.filter(late.str.starts_with("user:"))[0])
    monkeypatch.chdir(tmp_path)
    short = ("--set", "train.epochs=2", "--set", "train.threads=1")
    for words in commands:
        extra = short if words[0] == "train" else ()
        result = CliRunner().invoke(app, [*words, *extra, "--no-track"])
        assert result.exit_code == 0, (words, result.stderr)
    assert pl.read_csv("labels.csv")["in_graph"].all()
    assert pl.read_parquet("lists.parquet")["in_graph"].all()
