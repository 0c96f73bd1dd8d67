"""Every bad input gets a sentence that says what is wrong, where, and what repairs it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from medapps.config import validate
from medapps.errors import MedappsError
from medapps.graph.config import GraphConfig
from medapps.graph.graph import Graph
from medapps.graph.read import read_graph
from medapps.graph.synth import synthesize
from medapps.graph.user_tables import read_interactions, read_labels

GOOD = pl.DataFrame({"head": ["a", "b"], "relation": ["r", "r"], "tail": ["b", "c"]})


def refused(do: Callable[[], object], *words: str) -> str:
    """The message of the refusal, which must have all these words."""
    with pytest.raises(MedappsError) as caught:
        do()
    message = str(caught.value)
    for word in words:
        assert word in message, message
    assert not re.search(r"Traceback|polars\.|ComputeError", message), message
    return message


def test_missing_column(tmp_path: Path) -> None:
    GOOD.rename({"tail": "object"}).write_parquet(tmp_path / "skg.parquet")
    refused(
        lambda: read_graph(tmp_path),
        "skg.parquet has no column 'tail'; it has 'head', 'relation', 'object'",
        "--set graph.tail=NAME",
    )
    refused(lambda: read_graph(tmp_path, GraphConfig(tail=3)), "no column 3")
    refused(lambda: read_graph(tmp_path, GraphConfig(tail=0)), "must be three columns")


def test_nulls_and_empty_names(tmp_path: Path) -> None:
    pl.DataFrame(
        {"head": ["a", None, None], "relation": ["r"] * 3, "tail": ["b", "c", ""]}
    ).write_parquet(tmp_path / "skg.parquet")
    refused(
        lambda: read_graph(tmp_path),
        "column 'head' has 2 (the first in row 2), column 'tail' has 1 (the first in row 3)",
    )


@pytest.mark.parametrize(
    ("column", "values", "kind"),
    [
        ("head", [0.5, 1.5], "Float64"),
        ("tail", [[1], [2]], "List"),
        ("relation", [True, False], "Bool"),
    ],
)
def test_wrong_types(column: str, values: list[object], kind: str, tmp_path: Path) -> None:
    GOOD.with_columns(pl.Series(column, values)).write_parquet(tmp_path / "skg.parquet")
    refused(lambda: read_graph(tmp_path), f"Column '{column}'", kind, "ids are strings or integers")


def test_integers_mixed_with_strings(tmp_path: Path) -> None:
    GOOD.with_columns(tail=pl.Series([1, 2])).write_parquet(tmp_path / "skg.parquet")
    refused(
        lambda: read_graph(tmp_path),
        "Integer ids are mixed with string ids",
        "'head' is String, 'tail' is Int64",
    )


def test_integers_mixed_with_strings_across_files(tmp_path: Path, tiny: Graph) -> None:
    GOOD.write_parquet(tmp_path / "train.parquet")
    GOOD.with_columns(head=pl.Series([1, 2]), tail=pl.Series([1, 2])).write_parquet(
        tmp_path / "test.parquet"
    )
    refused(lambda: read_graph(tmp_path), "train.parquet has String and test.parquet has Int64")
    pl.DataFrame({"user": [1, 2], "x": ["p", "q"]}).write_parquet(tmp_path / "labels.parquet")
    refused(
        lambda: read_labels(tmp_path, tiny), "labels.parquet has Int64", "the graph has String ids"
    )


def test_an_id_beyond_64_bits(tmp_path: Path) -> None:
    big = pl.Series([2**63, 1], dtype=pl.UInt64)
    GOOD.with_columns(head=big, tail=big).write_parquet(tmp_path / "skg.parquet")
    refused(lambda: read_graph(tmp_path), "9223372036854775808, which does not fit into 64 bits")


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".tsv"])
def test_empty_files(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"skg{suffix}").touch()
    refused(lambda: read_graph(tmp_path), "is empty: it has 0 bytes")


def test_tables_without_rows(tmp_path: Path) -> None:
    GOOD.clear().write_parquet(tmp_path / "skg.parquet")
    refused(lambda: read_graph(tmp_path), "it has columns but no rows")
    (tmp_path / "x.csv").write_text("head,relation,tail\n")
    refused(lambda: read_graph(tmp_path / "x.csv"), "it has columns but no rows")


def test_a_folder_without_a_graph(tmp_path: Path) -> None:
    refused(lambda: read_graph(tmp_path), "holds no graph", "no files", "medapps data synth")
    (tmp_path / "notes.md").touch()
    refused(lambda: read_graph(tmp_path), "it has notes.md")


def test_no_such_file_and_no_such_format(tmp_path: Path) -> None:
    refused(lambda: read_graph(tmp_path / "skg.parquet"), "There is no file")
    (tmp_path / "skg.json").write_text("{}")
    refused(lambda: read_graph(tmp_path / "skg.json"), "suffix .json", ".parquet, .csv, .tsv")


@pytest.mark.parametrize("keep", [0.02, 0.5, 0.99])
def test_a_parquet_file_cut_short(keep: float, tiny_dataset: Path, tmp_path: Path) -> None:
    whole = (tiny_dataset / "skg.parquet").read_bytes()
    (tmp_path / "skg.parquet").write_bytes(whole[: int(len(whole) * keep)])
    refused(lambda: read_graph(tmp_path), "skg.parquet is not a readable Parquet file", "cut short")


def test_a_parquet_file_with_damage_inside_never_gives_a_traceback(
    tiny_dataset: Path, tmp_path: Path
) -> None:
    whole = (tiny_dataset / "skg.parquet").read_bytes()
    path = tmp_path / "skg.parquet"
    seen = 0
    for at in range(100, len(whole), len(whole) // 40):
        path.write_bytes(whole[:at] + bytes(64) + whole[at + 64 :])
        try:
            read_graph(path)
        except MedappsError as error:
            assert "skg.parquet" in str(error)
            seen += 1
    assert seen > 10


def test_a_text_file_with_another_delimiter(tmp_path: Path) -> None:
    GOOD.write_csv(tmp_path / "skg.csv", separator="\t")
    message = refused(lambda: read_graph(tmp_path), "separated by tabs", "graph.separator")
    assert "'head\\trelation\\ttail'" in message
    assert len(read_graph(tmp_path, GraphConfig(separator="\t")).train) == 2


def test_ragged_lines(tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text("head,relation,tail\na,r,b\na,r,b,more\n")
    refused(lambda: read_graph(tmp_path / "long.csv"), "line 3 has 4 fields where line 1 has 3")
    (tmp_path / "short.csv").write_text("head,relation,tail\na,r,b\na,r\n")
    refused(lambda: read_graph(tmp_path / "short.csv"), "'tail' has 1 (the first in row 2)")


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "skg.csv").write_bytes(b"head,relation,tail\na,r,b\ncaf\xe9,r,b\n")
    refused(lambda: read_graph(tmp_path), "line 3 is not UTF-8 (byte 0xe9)")


def test_labels_of_strangers(tmp_path: Path, tiny: Graph) -> None:
    pl.DataFrame({"user": ["zoe", "max"], "x": ["p", "q"]}).write_parquet(
        tmp_path / "labels.parquet"
    )
    refused(
        lambda: read_labels(tmp_path, tiny),
        "None of the 2 users",
        "'zoe' is unknown, the graph has 'user:0000000'",
    )


def test_labels_with_the_same_user_twice(tmp_path: Path) -> None:
    pl.DataFrame({"user": ["a", "b", "a"], "x": ["p", "q", "q"]}).write_parquet(
        tmp_path / "labels.parquet"
    )
    refused(lambda: read_labels(tmp_path), "1 users", "more than one row, such as 'a'")


def test_labels_without_columns_or_file(tmp_path: Path) -> None:
    refused(lambda: read_labels(tmp_path), "has no labels", "--labels")
    pl.DataFrame({"user": ["a"]}).write_parquet(tmp_path / "labels.parquet")
    refused(lambda: read_labels(tmp_path), "no label column beside 'user'")
    pl.DataFrame({"id": ["a"], "x": ["p"]}).write_parquet(tmp_path / "labels.parquet")
    refused(lambda: read_labels(tmp_path), "no column 'user'; it has 'id', 'x'")
    (tmp_path / "labels.parquet").unlink()
    (tmp_path / "labels.csv").write_text("user;x\na;p\n")
    refused(lambda: read_labels(tmp_path), "it has 'user;x'", "separated by commas")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_ratings_that_are_not_finite(bad: float, suffix: str, tmp_path: Path) -> None:
    frame = pl.DataFrame({"user": ["a", "b"], "item": ["x", "y"], "rating": [1.0, bad]})
    path = tmp_path / f"interactions{suffix}"
    frame.write_parquet(path) if suffix == ".parquet" else frame.write_csv(path)
    refused(lambda: read_interactions(tmp_path), "1 ratings", "not finite", "row 2")


def test_ratings_times_and_splits_of_a_wrong_type(tmp_path: Path) -> None:
    path = tmp_path / "interactions.csv"
    path.write_text("user,item,rating\na,x,good\n")
    refused(lambda: read_interactions(path), "Column 'rating'", "ratings are numbers")
    path.write_text("user,item,timestamp\na,x,noon\n")
    refused(lambda: read_interactions(path), "Column 'timestamp'", "a number or a date")
    path.write_text("user,item,split\na,x,dev\n")
    refused(lambda: read_interactions(path), "holds 'dev'; parts are train, valid and test")
    path.write_text("user,item,timestamp\na,x,2026-01-02 03:04:05\nb,y,2026-01-02 00:00:00\n")
    assert read_interactions(path)["timestamp"].dtype == pl.Datetime


def test_config_with_a_wrong_type() -> None:
    for values, word in (
        ({"duplicates": "maybe"}, "duplicates"),
        ({"inverse": "perhaps"}, "inverse"),
        ({"head": 1.5}, "head"),
        ({"separator": "::"}, "separator"),
        ({"self_loop": "drop"}, "did you mean 'self_loops'?"),
    ):
        refused(lambda v=values: validate(GraphConfig, v, "x.yaml"), "In x.yaml", word)


def test_synth_with_impossible_sizes(tmp_path: Path) -> None:
    presets = "tiny, demo, medium, paper"
    refused(lambda: synthesize(tmp_path / "x", "huge"), "no preset 'huge'", presets)
    refused(lambda: synthesize(tmp_path / "x", "tiny", users=5), "5 users", "At least 100")
    refused(lambda: synthesize(tmp_path / "x", "tiny", seed=-1), "seed must be 0 or more")
    assert not (tmp_path / "x").exists()
