"""A graph has the triples of its file, under whatever name, order and format they come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from medapps.errors import MedappsError
from medapps.graph.config import GraphConfig
from medapps.graph.graph import Graph
from medapps.graph.known_triples import flat
from medapps.graph.read import TAKES, read_graph
from medapps.graph.split import leave_one_out, split_purchases
from medapps.graph.user_tables import read_interactions, read_labels

ROWS = [
    ("user:b", "follows", "user:a"),
    ("user:a", "follows", "user:c"),
    ("user:a", "buys_at", "shop:1"),
    ("user:b", "follows", "user:a"),
    ("user:c", "knows", "user:c"),
]
FRAME = pl.DataFrame(ROWS, schema=["head", "relation", "tail"], orient="row")


def words(graph: Graph, split: str = "train") -> list[tuple[object, ...]]:
    """The triples of a split as names."""
    triples = getattr(graph, split)
    return list(
        zip(
            graph.entities.names(triples[:, 0]),
            graph.relations.names(triples[:, 1]),
            graph.entities.names(triples[:, 2]),
            strict=True,
        )
    )


def test_a_graph_has_the_distinct_triples_in_order(tmp_path: Path) -> None:
    FRAME.write_parquet(tmp_path / "skg.parquet")
    graph = read_graph(tmp_path)
    # sorted by number, and numbers follow the order of names
    assert words(graph) == sorted(set(ROWS))
    assert graph.train.dtype == np.int32
    assert graph.notes == {"duplicates": 1, "self_loops": 1}
    assert graph.entities.names(graph.users).to_list() == ["user:a", "user:b", "user:c"]
    assert len(graph.valid) == len(graph.test) == 0


@pytest.mark.parametrize("name", ["x.parquet", "x.csv", "x.tsv", "x.txt"])
def test_every_format_gives_the_same_graph(name: str, tmp_path: Path) -> None:
    FRAME.write_parquet(tmp_path / "skg.parquet")
    mark = "," if name == "x.csv" else "\t"
    if name == "x.parquet":
        FRAME.reverse().write_parquet(tmp_path / name)
    else:
        FRAME.reverse().write_csv(tmp_path / name, separator=mark)
    one, other = read_graph(tmp_path / "skg.parquet"), read_graph(tmp_path / name)
    assert np.array_equal(one.train, other.train)
    assert one.entities == other.entities and one.relations == other.relations
    saved = [graph.save(tmp_path / f"g{i}") for i, graph in enumerate([one, other])]
    assert saved[0].digest == saved[1].digest


def test_columns_by_name_and_by_position(tmp_path: Path) -> None:
    FRAME.rename({"head": "from", "tail": "to"}).select("to", "relation", "from").write_csv(
        tmp_path / "a.csv"
    )
    FRAME.write_csv(tmp_path / "b.tsv", separator=";", include_header=False)
    by_name = read_graph(tmp_path / "a.csv", GraphConfig(head="from", tail="to"))
    by_place = read_graph(tmp_path / "a.csv", GraphConfig(head=2, relation=1, tail=0))
    config = GraphConfig(head=0, relation=1, tail=2, header=False, separator=";")
    bare = read_graph(tmp_path / "b.tsv", config)
    assert words(by_name) == words(by_place) == words(bare) == sorted(set(ROWS))


def test_integer_ids_stay_integers_and_leading_zeros_stay_text(tmp_path: Path) -> None:
    pl.DataFrame({"head": [5, 7], "relation": [1, 1], "tail": [7, -3]}).write_parquet(
        tmp_path / "a.parquet"
    )
    (tmp_path / "b.csv").write_text("head,relation,tail\n5,1,7\n7,1,-3\n")
    (tmp_path / "c.csv").write_text("head,relation,tail\n05,1,7\n7,1,3\n")
    for name in ("a.parquet", "b.csv"):
        assert words(read_graph(tmp_path / name)) == [(5, 1, 7), (7, 1, -3)]
    assert words(read_graph(tmp_path / "c.csv")) == [("05", 1, "7"), ("7", 1, "3")]


def test_splits_share_one_numbering(tmp_path: Path) -> None:
    FRAME.head(3).write_parquet(tmp_path / "train.parquet")
    FRAME.tail(1).write_parquet(tmp_path / "test.parquet")
    graph = read_graph(tmp_path)
    assert words(graph, "test") == [ROWS[4]]
    assert graph.relations.names().to_list() == ["buys_at", "follows", "knows"]


@pytest.mark.parametrize(
    ("config", "rows", "notes"),
    [
        (GraphConfig(duplicates="keep"), 5, 1),
        (GraphConfig(self_loops="drop"), 3, 1),
        (GraphConfig(duplicates="keep", self_loops="drop"), 4, 1),
    ],
)
def test_policies(config: GraphConfig, rows: int, notes: int, tmp_path: Path) -> None:
    FRAME.write_parquet(tmp_path / "skg.parquet")
    graph = read_graph(tmp_path, config)
    assert len(graph.train) == rows
    assert graph.notes["duplicates"] == notes and graph.notes["self_loops"] == 1


def test_policies_may_refuse(tmp_path: Path) -> None:
    FRAME.write_parquet(tmp_path / "skg.parquet")
    with pytest.raises(MedappsError, match=r"1 triples .* such as \(user:b, follows, user:a\)"):
        read_graph(tmp_path, GraphConfig(duplicates="error"))
    with pytest.raises(MedappsError, match=r"itself, such as \(user:c, knows, user:c\)"):
        read_graph(tmp_path, GraphConfig(self_loops="error"))


def test_inverse_relations_mirror_training_triples_only(tmp_path: Path) -> None:
    FRAME.head(3).write_parquet(tmp_path / "train.parquet")
    FRAME.tail(1).write_parquet(tmp_path / "valid.parquet")
    graph = read_graph(tmp_path, GraphConfig(inverse=True))
    mirrored = {(t, f"{r}:inverse", h) for h, r, t in ROWS[:3]}
    assert set(words(graph)) == set(ROWS[:3]) | mirrored
    assert words(graph, "valid") == [ROWS[4]]


def test_users_come_from_the_tables_beside_when_no_name_says_so(tmp_path: Path) -> None:
    pl.DataFrame(
        {"head": ["ann", "bob"], "relation": "likes", "tail": ["tea", "ann"]}
    ).write_parquet(tmp_path / "skg.parquet")
    assert len(read_graph(tmp_path).users) == 3
    pl.DataFrame({"user": ["bob", "zoe"], "class": ["x", "y"]}).write_csv(tmp_path / "labels.csv")
    graph = read_graph(tmp_path)
    assert graph.entities.names(graph.users).to_list() == ["bob"]
    pl.DataFrame({"user": ["ann"], "item": ["i"]}).write_parquet(tmp_path / "interactions.parquet")
    graph = read_graph(tmp_path)
    assert graph.entities.names(graph.users).to_list() == ["ann", "bob"]


def test_numbers_in_a_text_file_match_the_names_of_a_graph(tmp_path: Path) -> None:
    pl.DataFrame({"head": ["1", "2"], "relation": "r", "tail": ["2", "x"]}).write_parquet(
        tmp_path / "skg.parquet"
    )
    (tmp_path / "labels.csv").write_text("user,class\n1,p\n2,q\n")
    graph = read_graph(tmp_path)
    assert graph.entities.names(graph.users).to_list() == ["1", "2"]
    assert read_labels(tmp_path, graph)["user"].to_list() == ["1", "2"]


def test_text_files_as_windows_writes_them(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xef\xbb\xbfhead,relation,tail\r\na,r,b\r\n")
    assert words(read_graph(tmp_path / "x.csv")) == [("a", "r", "b")]


def test_only_training_interactions_become_triples(tiny_dataset: Path) -> None:
    graph = read_graph(tiny_dataset)
    added = {(h, t) for h, r, t in words(graph) if r == TAKES}
    parts = leave_one_out(read_interactions(tiny_dataset))
    pairs = {
        split: set(parts.filter(split=split).select("user", "item").iter_rows())
        for split in ("train", "valid", "test")
    }
    assert added == pairs["train"]
    assert len(pairs["test"]) == 300 >= len(pairs["valid"]) > 290
    assert graph.notes["interactions_added"] == len(added)


LINKS = pl.DataFrame({"head": ["ann", "bob"], "relation": "likes", "tail": ["bob", "tea"]})
BOUGHT = pl.DataFrame({"user": ["ann", "ann", "eve", "eve"], "item": ["tea", "pen", "pen", "cup"]})
NUMBERS = pl.DataFrame({"head": [1, 2], "relation": "r", "tail": [2, 3]})


@pytest.mark.parametrize(
    ("links", "bought", "message"),
    [
        (
            NUMBERS,
            pl.DataFrame({"user": [1, 1], "item": [1, 2]}),
            "1 ids of the interactions, such as 1, name a user",
        ),
        (NUMBERS, BOUGHT, "Integer ids are mixed with string ids: the graph has Int64"),
        (
            LINKS,
            pl.DataFrame({"user": [1, 1], "item": [7, 8]}),
            "Integer ids are mixed with string ids: the graph has String",
        ),
        (
            LINKS.with_columns(relation=pl.Series([0, 1])),
            BOUGHT,
            "relations of the graph are integers",
        ),
        (LINKS, BOUGHT[[0, 2]], "No user can be tested"),
        (LINKS, BOUGHT.with_columns(rating=-1), "4 ratings"),
    ],
)
def test_purchases_that_do_not_fit_are_left_out_or_refused(
    links: pl.DataFrame, bought: pl.DataFrame, message: str, tmp_path: Path
) -> None:
    links.write_parquet(tmp_path / "skg.parquet")
    alone = read_graph(tmp_path)
    bought.write_parquet(tmp_path / "interactions.parquet")
    with pytest.raises(MedappsError, match=message):
        read_graph(tmp_path, GraphConfig(interactions="on"))
    graph = read_graph(tmp_path)
    assert words(graph) == words(alone) and graph.entities == alone.entities
    assert graph.notes == alone.notes | {"interactions_left_out": len(bought)}


def test_purchases_are_wanted_but_there_are_none(tmp_path: Path) -> None:
    LINKS.write_parquet(tmp_path / "skg.parquet")
    assert "interactions_left_out" not in read_graph(tmp_path).notes
    with pytest.raises(MedappsError, match="interactions"):
        read_graph(tmp_path, GraphConfig(interactions="on"))


def test_buyers_and_items_that_only_purchases_name_become_entities(tmp_path: Path) -> None:
    LINKS.write_parquet(tmp_path / "skg.parquet")
    BOUGHT.with_columns(timestamp=pl.Series([0, 1, 0, 1])).write_csv(tmp_path / "interactions.csv")
    graph = read_graph(tmp_path)
    assert set(words(graph)) - set(LINKS.iter_rows()) == {
        ("ann", "takes", "tea"),
        ("eve", "takes", "pen"),
    }
    assert graph.entities.names().to_list() == ["ann", "bob", "eve", "pen", "tea"]
    assert graph.entities.names(graph.users).to_list() == ["ann", "eve"]
    off = read_graph(tmp_path, GraphConfig(interactions="off"))
    assert words(off) == sorted(LINKS.iter_rows())
    assert off.notes == {"duplicates": 0, "self_loops": 0}


def test_a_given_split_counts_and_names_the_users(tmp_path: Path) -> None:
    LINKS.write_parquet(tmp_path / "skg.parquet")
    split = split_purchases(BOUGHT.with_columns(timestamp=pl.Series([0, 1, 1, 0])))
    graph = read_graph(tmp_path, split=split)
    assert {(h, t) for h, r, t in words(graph) if r == TAKES} == {("ann", "tea"), ("eve", "cup")}
    assert graph.entities.names(graph.users).to_list() == ["ann", "eve"]
    off = read_graph(tmp_path, GraphConfig(interactions="off"), split)
    assert words(off) == sorted(LINKS.iter_rows()) and len(off.users) == 3


LETTERS = st.characters(exclude_categories=["Cs"])
NAME = st.text(LETTERS, min_size=1, max_size=6)
CELL = st.one_of(st.none(), st.text(LETTERS, max_size=6))
TABLE = st.one_of(
    st.lists(st.tuples(NAME, NAME, NAME), max_size=12),
    st.lists(st.tuples(CELL, CELL, CELL), max_size=12),
)


@given(rows=TABLE, suffix=st.sampled_from([".parquet", ".csv", ".tsv"]))
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_table_of_strings_is_a_graph_or_is_refused(
    rows: list[tuple[str | None, ...]], suffix: str, tmp_path: Path
) -> None:
    frame = pl.DataFrame(
        rows, schema=dict.fromkeys(["head", "relation", "tail"], pl.String), orient="row"
    )
    path = tmp_path / f"t{suffix}"
    if suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path, separator="," if suffix == ".csv" else "\t")
    try:
        graph = read_graph(path)
    except MedappsError as error:
        assert str(error)
        assert suffix != ".parquet" or not rows or any(not cell for row in rows for cell in row)
        return
    read = {tuple(str(part) for part in triple) for triple in words(graph)}
    if suffix != ".tsv":  # a .tsv has no quotes, so a name with a tab or line break is torn
        assert read == {tuple(row) for row in rows}
    everything = graph.entities.names()
    assert graph.entities.ids(everything).tolist() == list(range(len(everything)))


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("fb15k-237", (14_541, 237, 272_115, 17_535, 20_466)),
        ("wn18rr", (40_943, 11, 86_835, 3_034, 3_134)),
        ("codex-m", (17_050, 51, 185_584, 10_310, 10_311)),
    ],
)
def test_published_counts(name: str, counts: tuple[int, ...], data: Callable[[str], Path]) -> None:
    graph = read_graph(data(name))
    found = graph.counts()
    assert tuple(found[k] for k in ("entities", "relations", "triples", "valid", "test")) == counts


def test_a_saved_graph_is_the_same_graph(tiny: Graph, tmp_path: Path) -> None:
    saved = tiny.save(tmp_path / "g")
    assert np.array_equal(saved.train, tiny.train) and np.array_equal(saved.users, tiny.users)
    assert saved.entities == tiny.entities and saved.relations == tiny.relations
    assert (saved.name, saved.source, saved.notes) == (tiny.name, tiny.source, tiny.notes)


def test_known_triples_answer_like_a_dictionary(tiny: Graph) -> None:
    tails: dict[tuple[int, int], set[int]] = {}
    for h, r, t in tiny.train.tolist():
        tails.setdefault((h, r), set()).add(t)
    width = len(tiny.relations)
    heads, relations = np.divmod(np.arange(len(tiny.entities) * width), width)
    query, answer = flat(*tiny.known.spans(heads, relations, "tail"))
    found: dict[tuple[int, int], set[int]] = {}
    for q, a in zip(query.tolist(), answer.tolist(), strict=True):
        found.setdefault((int(heads[q]), int(relations[q])), set()).add(a)
    assert found == tails
