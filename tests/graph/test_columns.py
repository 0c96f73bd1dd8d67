"""Tables of a user whose columns and dates are called and written otherwise."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from medapps.cli.main import app
from medapps.errors import MedappsError
from medapps.graph.config import InteractionsConfig
from medapps.graph.read import read_graph
from medapps.graph.split import TEST, split_purchases
from medapps.graph.user_tables import read_interactions, read_labels

SHOP = InteractionsConfig(user="buyer", item="product", rating="stars", timestamp="when")
ROWS = {
    "product": ["i1", "i2", "i3", "i1", "i3"],
    "buyer": ["u1", "u1", "u1", "u2", "u2"],
    "when": ["2026-01-03", "2026-02-01", "2026-01-01", "2026-01-01", "2026-01-02"],
    "stars": ["5", "4", "3", "2", "1"],
    "user": ["x"] * 5,  # not the one that is meant
}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_are_taken_by_the_names_that_settings_give(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"interactions{suffix}"
    frame = pl.DataFrame(ROWS).with_columns(pl.col("stars").cast(pl.Int64))
    frame.write_csv(path) if suffix == ".csv" else frame.write_parquet(path)
    read = read_interactions(path, columns=SHOP)
    assert read.columns == ["user", "item", "rating", "timestamp"]
    assert read["user"].to_list() == ROWS["buyer"] and read["rating"].to_list() == [5, 4, 3, 2, 1]
    tested = split_purchases(path, columns=SHOP).table(TEST)
    assert tested.rows() == [("u1", "i2"), ("u2", "i3")]  # the latest of each


def test_every_missing_column_is_named_at_once_with_its_setting() -> None:
    with pytest.raises(MedappsError) as caught:
        read_interactions(pl.DataFrame({"buyer": ["u"], "product": ["i"]}))
    for words in ("'user' and 'item'", "--set interactions.user=NAME --set interactions.item=NAME"):
        assert words in str(caught.value)
    with pytest.raises(MedappsError, match=r"no column 'when'.*interactions\.timestamp=NAME"):
        read_interactions(
            pl.DataFrame({"user": ["u"], "item": ["i"]}),
            columns=InteractionsConfig(timestamp="when"),
        )


@pytest.mark.parametrize(
    ("dates", "written"),
    [
        ("iso", ["2026-02-01", "2026-01-31"]),
        ("iso", ["2026/2/1", "2026/1/31"]),
        ("day-first", ["01/02/2026", "31/01/2026"]),
        ("day-first", ["1.2.2026 00:00", "31.1.2026 00:00"]),
        ("month-first", ["02/01/2026", "01/31/2026"]),
        ("month-first", ["02-01-2026 00:00:00", "01-31-2026 00:00:00"]),
        ("iso", ["2026-02-01T00:00:00Z", "2026-01-31T02:00:00+02:00"]),
    ],
)
def test_dates_are_read_as_the_setting_says(dates: str, written: list[str]) -> None:
    frame = pl.DataFrame({"user": ["u", "u"], "item": ["a", "b"], "timestamp": written})
    times = read_interactions(frame, columns=InteractionsConfig(dates=dates))["timestamp"]
    assert times.dt.replace_time_zone(None).to_list() == [
        datetime(2026, 2, 1),
        datetime(2026, 1, 31),
    ]


def test_the_order_of_day_and_month_is_never_guessed() -> None:
    frame = pl.DataFrame({"user": ["u"], "item": ["a"], "timestamp": ["01/02/2026"]})
    with pytest.raises(MedappsError, match=r"'01/02/2026'.*interactions\.dates=day-first or"):
        read_interactions(frame)
    frame = frame.with_columns(timestamp=pl.lit("31/01/2026"))
    with pytest.raises(MedappsError, match="month-first dates"):
        read_interactions(frame, columns=InteractionsConfig(dates="month-first"))


def test_labels_call_their_users_as_they_like() -> None:
    frame = pl.DataFrame({"kind": ["a", "b"], "customer": ["u1", "u2"], "user": ["x", "y"]})
    assert read_labels(frame, user="customer").to_dict(as_series=False) == {
        "user": ["u1", "u2"],
        "kind": ["a", "b"],
    }
    with pytest.raises(MedappsError, match=r"no column 'client'.*labels\.user=NAME"):
        read_labels(frame, user="client")


def test_other_columns_make_another_split_and_commands_know_them(tmp_path: Path) -> None:
    """Two mappings of one file: two splits in the workspace, and users by the mapped columns."""
    folder = tmp_path / "shop"
    folder.mkdir()
    triples = {"head": ["u1", "u2"], "relation": ["likes"] * 2, "tail": ["i1", "i2"]}
    pl.DataFrame(triples).write_csv(folder / "triples.csv")
    pl.DataFrame(ROWS).write_csv(folder / "interactions.csv")
    pl.DataFrame({"customer": ["u2"], "kind": ["a"]}).write_csv(folder / "labels.csv")
    named = ["user=buyer", "item=product", "rating=stars", "timestamp=when"]
    sets = [f"interactions.{one}" for one in named] + ["labels.user=customer"]

    def check(sets: list[str]) -> dict:
        words = [word for one in sets for word in ("--set", one)]
        words += ["--json", "--no-track", "--workspace", str(tmp_path / "w")]
        return json.loads(CliRunner().invoke(app, ["data", "check", str(folder), *words]).stdout)

    assert check(sets)["users"] == 2 and check(sets)["interactions"] == 5
    assert "labels.user" in check(sets[:-1])["problems"][0]["message"]

    from medapps.config import resolve
    from medapps.settings import Settings
    from medapps.stages import Runner, graph_stage, split_stage
    from medapps.store import Workspace

    runner = Runner(Workspace(tmp_path / "w"), tracked=False)
    mapped = resolve(Settings, sets=sets)
    late = resolve(Settings, sets=[*sets, "interactions.dates=day-first"])
    for settings in (mapped, late, mapped):
        split_stage(runner, folder / "interactions.csv", settings)
    assert len(runner.workspace.saved("split")) == 2
    graph = graph_stage(runner, folder, mapped)[0]
    assert graph.entities.names(graph.users).to_list() == ["u1", "u2"]
    assert "takes" in graph.relations.names().to_list()
    assert graph.train.shape == read_graph(folder, tables_beside=mapped.tables).train.shape


def test_a_graph_without_tables_says_that_its_users_are_not_known(tmp_path: Path) -> None:
    from medapps.settings import Settings
    from medapps.stages import Runner, graph_stage
    from medapps.store import Workspace

    said: list[str] = []
    runner = Runner(Workspace(tmp_path / "w"), tracked=False, say=said.append)
    triples = {"head": ["a", "b"], "relation": ["r", "r"], "tail": ["c", "d"]}
    for name, prefix in (("bare", ""), ("named", "user:")):
        folder = tmp_path / name
        folder.mkdir()
        frame = pl.DataFrame(triples).with_columns(head=pl.lit(prefix) + pl.col("head"))
        frame.write_parquet(folder / "triples.parquet")
        graph_stage(runner, folder, Settings())
    assert len(said) == 1 and "Every entity counts as one" in said[0]
