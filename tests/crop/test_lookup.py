"""Names are found in a saved map of many, whatever they look like; a subset needs little memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medapps.crop.crop import Crop
from medapps.crop.export import Export, export_crop, export_files
from medapps.graph.ids import IdMap
from medapps.model.rule import ScoreSpec

ODD = st.text(st.sampled_from("ab\0é\U0001f600 "), max_size=6)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[IdMap, dict[str, int]]:
    """A map with fences, full of common prefixes and NULs."""
    rng = np.random.default_rng(0)
    letters = "ab\0é\U0001f600 "
    drawn = (rng.integers(0, 6, rng.integers(0, 9)) for _ in range(6000))
    names = {"".join(letters[i] for i in letter) for letter in drawn}
    path = tmp_path_factory.mktemp("map") / "ids"
    IdMap.of(pl.Series(sorted(names))).save(path)
    ids = IdMap.load(path)
    assert len(ids) > 3000 and ids.fences is not None
    return ids, {name: i for i, name in enumerate(sorted(names, key=str.encode))}


@given(st.lists(ODD, min_size=1, max_size=20))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_search_between_fences_finds_what_a_dictionary_finds(
    saved: tuple[IdMap, dict[str, int]], asked: list[str]
) -> None:
    ids, truth = saved
    assert ids.ids(asked).tolist() == [truth.get(name, -1) for name in asked]


def test_every_name_is_found_where_it_stands(saved: tuple[IdMap, dict[str, int]]) -> None:
    ids, _ = saved
    names = ids.names()
    for start in range(0, len(ids), 300):  # few at a time: by search, not by join
        part = np.arange(start, min(start + 300, len(ids)))
        assert np.array_equal(ids.ids(names[part]), part)
    assert ids.ids(pl.Series(["a", None])).tolist()[1] == -1


def _wide(folder: Path, n: int, width: int) -> Crop:
    """A mapped table with three users in four rows."""
    table = np.memmap(folder / "table", np.float32, "w+", shape=(n, width))
    table[:] = np.random.default_rng(0).standard_normal((1, width)).astype(np.float32)
    names = pl.select(pl.format("name_of_user_{}", pl.int_range(10**7, 10**7 + n))).to_series()
    return Crop(
        entities=table,
        entity_ids=IdMap.of(names),
        dim=width,
        method="med",
        spec=ScoreSpec(),
        users=np.flatnonzero(np.arange(n) % 4).astype(np.int32),
    )


@pytest.mark.parametrize("form", ["safetensors", "npz"])
def test_an_export_holds_blocks_and_names_only(tmp_path: Path, form: str) -> None:
    crop = _wide(tmp_path, 100_000, 200)  # 80 MB, 2.1 MB of names
    tracemalloc.start()
    try:
        export_files(crop, tmp_path / "a", Export(dtype="int8", form=form, users_only=True))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20e6


def test_a_mapped_crop_is_not_read_when_few_are_looked_up(tmp_path: Path) -> None:
    crop = export_crop(_wide(tmp_path, 50_000, 200), tmp_path / "a")
    names = crop.entity_ids.names(np.arange(0, 50_000, 500))
    tracemalloc.start()
    try:
        vectors, known = crop.vectors(names)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert known.all() and vectors.shape == (100, 200)
    assert peak < 2e6  # of 40 MB
