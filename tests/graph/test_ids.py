"""Names and numbers agree in both directions, whatever the names are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medapps.errors import MedappsError
from medapps.graph.ids import IdMap

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.lists(TEXT, max_size=40), st.lists(TEXT, max_size=20))
@settings(max_examples=150, deadline=None)
def test_names_round_trip_and_strangers_are_minus_one(names: list[str], asked: list[str]) -> None:
    ids = IdMap.of(pl.Series("n", names, dtype=pl.String))
    truth = {name: i for i, name in enumerate(sorted(set(names), key=lambda n: n.encode()))}
    assert ids.names().to_list() == list(truth)
    wanted = [*names, *asked]
    expected = [truth.get(name, -1) for name in wanted]
    assert ids.ids(pl.Series("n", wanted, dtype=pl.String)).tolist() == expected
    known = ids.ids(pl.Series("n", names, dtype=pl.String))
    assert ids.names(known).to_list() == names


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40), st.lists(st.integers(-9, 9)))
@settings(max_examples=100, deadline=None)
def test_integer_names_round_trip(names: list[int], asked: list[int]) -> None:
    ids = IdMap.of(pl.Series("n", names, dtype=pl.Int64))
    truth = {name: i for i, name in enumerate(sorted(set(names)))}
    wanted = pl.Series("n", [*names, *asked], dtype=pl.Int64)
    assert ids.ids(wanted).tolist() == [truth.get(name, -1) for name in wanted]


def test_both_ways_of_looking_up_agree() -> None:
    names = pl.Series([f"n{i * 7 % 1000}" for i in range(1000)] + ["n", "n\0", "n\0\0", "é"])
    ids = IdMap.of(names)
    few = pl.Series(["n", "n\0", "n\0\0", "n500", "nothing", "é", None])  # searched
    many = pl.concat([few] * 200)  # joined
    assert ids.ids(few).tolist() * 200 == ids.ids(many).tolist()
    assert (ids.ids(few) >= 0).tolist() == [True, True, True, True, False, True, False]


def test_names_of_the_other_type_are_unknown() -> None:
    assert IdMap.of(pl.Series(["1", "2"])).ids(pl.Series([1, 2])).tolist() == [-1, -1]
    assert IdMap.of(pl.Series([1, 2])).ids(pl.Series(["1", "2"])).tolist() == [-1, -1]


@pytest.mark.parametrize("names", [["b", "a", "", "ä"], [5, -3, 2**40]])
def test_a_saved_map_is_the_same_map(names: list[str] | list[int], tmp_path: Path) -> None:
    ids = IdMap.of(pl.Series(names))
    ids.save(tmp_path / "ids")
    again = IdMap.load(tmp_path / "ids")
    assert again == ids
    assert again.names().to_list() == sorted(names)  # type: ignore[type-var]
    part = np.array([0, 2])
    assert again.subset(part).names().to_list() == ids.names(part).to_list()


def test_fractions_are_no_names() -> None:
    with pytest.raises(MedappsError, match="strings or integers, not Float64"):
        IdMap.of(pl.Series([0.5]))


def test_a_large_saved_map_finds_names_between_its_fences(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    letters = np.array(list("ab\0é"))
    names = ["".join(letters[rng.integers(0, 4, rng.integers(0, 9))]) for _ in range(20_000)]
    names += ["x" * 60, "x" * 60 + "\0", "x" * 61]
    IdMap.of(pl.Series(names)).save(tmp_path / "ids")
    ids = IdMap.load(tmp_path / "ids")
    assert ids.fences is not None
    truth = {name: i for i, name in enumerate(sorted(set(names), key=lambda n: n.encode()))}
    for _ in range(40):
        asked = [names[i] for i in rng.integers(0, len(names), 20)] + names[-3:]
        asked += ["".join(letters[rng.integers(0, 4, rng.integers(0, 10))]) for _ in range(20)]
        assert ids.ids(pl.Series(asked)).tolist() == [truth.get(name, -1) for name in asked]


@pytest.mark.parametrize("kind", ["strings", "integers"])
def test_appended_names_leave_older_ids_as_they_are(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(4)
    pool = rng.permutation(40_000)[:3000]
    every = pl.Series("name", pool if kind == "integers" else [f"n{i}" for i in pool])
    first = IdMap.of(every[:2000])
    grown = first.appended(every[1500:])
    assert len(grown) == 3000
    assert grown.names(np.arange(2000)).equals(first.names())
    truth = {name: i for i, name in enumerate(grown.names().to_list())}
    path = tmp_path / "ids.safetensors"
    grown.save(path)
    subset = grown.subset(np.arange(5, 3000, 7))
    assert subset.names().equals(grown.names(np.arange(5, 3000, 7)))
    for ids, asked in (
        (grown, every),
        (IdMap.load(path), every),
        (IdMap.load(path), every[:50]),
        (IdMap.load(path), every[2900:2950]),
    ):
        assert ids.ids(asked).tolist() == [truth[name] for name in asked.to_list()]
    gone = [-5, 50_000] if kind == "integers" else ["", "zz"]
    assert IdMap.load(path).ids(gone).tolist() == [-1, -1]
    asked = subset.names()[::3]
    assert subset.ids(asked).tolist() == list(range(0, len(subset), 3))
    assert grown.appended(every) is grown
