"""Nearest users: exact search equals sorting all distances; the index is measured against it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import medapps.crop.similar as module
from medapps.crop.crop import Crop
from medapps.crop.export import Export, export_crop
from medapps.crop.similar import candidates, nearest, search, similar
from medapps.errors import MedappsError
from tests.crop.conftest import make_crop


def _naive(crop: Crop, query: int, rows: np.ndarray, k: int) -> tuple[list[int], list[float]]:
    difference = crop.rows(rows).astype(float) - crop.rows(np.array([query])).astype(float)
    distance = (
        np.abs(difference).sum(1) if crop.spec.norm == "l1" else np.linalg.norm(difference, axis=1)
    )
    order = [i for i in np.lexsort((rows, distance.astype(np.float32))) if rows[i] != query][:k]
    return rows[order].tolist(), distance[order].tolist()


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("users_only", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_exact_search_equals_sorting_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, norm: str, users_only: bool, dtype: str
) -> None:
    crop = export_crop(make_crop(n=400, norm=norm), tmp_path / "a", Export(dtype=dtype))
    monkeypatch.setattr(module, "_BLOCK_NUMBERS", 1500)  # several blocks
    rows = candidates(crop, users_only=users_only)
    everything = np.arange(400) if rows is None else rows
    queries = crop.users[[3, 50, 199]]
    found, distance = nearest(crop, queries, 7, rows)
    for i, query in enumerate(queries):
        expected, values = _naive(crop, query, everything, 7)
        assert found[i].tolist() == expected
        assert np.allclose(distance[i], values, rtol=1e-5)


def test_equal_distances_come_in_id_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_NUMBERS", 60)
    crop = make_crop(n=50)
    crop.entities[:] = np.arange(50)[:, None] // 10  # five heaps of ten equal vectors
    found, distance = nearest(crop, np.array([14]), 12)
    assert found[0].tolist() == [10, 11, 12, 13, 15, 16, 17, 18, 19, 0, 1, 2]
    assert np.count_nonzero(distance[0]) == 3


def test_a_table_of_names_comes_back(crop: Crop) -> None:
    table = similar(crop, ["u00001é", "u00005é"], k=3)
    assert table.columns == ["name", "rank", "neighbour", "distance"]
    assert table["rank"].to_list() == [1, 2, 3] * 2
    assert table["neighbour"].str.starts_with("u").all()
    assert (table["neighbour"] != table["name"]).all()
    assert (
        not similar(crop, ["u00001é"], 20, users_only=False)["neighbour"].str.starts_with("u").all()
    )


def test_fewer_candidates_than_k_give_what_there_is(tmp_path: Path) -> None:
    crop = make_crop(n=10)
    for k in (20, 2**31, 10**40):
        assert len(similar(crop, ["u00001é"], k=k)) == 4
    integers = make_crop(n=10, integers=True)
    assert similar(integers, ["7"], k=2)["name"].to_list() == [7, 7]  # as typed on a command line


def test_wrong_questions_are_answered(crop: Crop) -> None:
    with pytest.raises(MedappsError, match=r"'ghost' is not in this crop. It knows e.g. 'u00001é'"):
        similar(crop, ["ghost"])
    with pytest.raises(MedappsError, match="-k takes a number of at least 1, not 0"):
        similar(crop, ["u00001é"], 0)
    with pytest.raises(MedappsError, match=r"knows no users.*--all"):
        similar(replace(crop, users=np.empty(0, np.int32)), ["u00001é"])


def test_an_index_is_as_good_as_it_says(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    from medapps.crop.similar import build_index, nearest_in, open_index, recall

    crop = make_crop(n=6000, dim=10)
    rows = candidates(crop, users_only=True)
    assert rows is not None
    every_cell = build_index(crop, rows, probe=10**6)
    assert recall(every_cell, crop, rows, 10) > 0.999  # looking everywhere is exact
    one_cell = build_index(crop, rows, probe=1)
    said = recall(one_cell, crop, rows, 10, queries=300)
    assert 0.05 < said < 0.95
    queries = np.random.default_rng(5).choice(rows, 200, replace=False).astype(np.int32)
    exact, _ = nearest(crop, queries, 10, rows)
    found, distance = nearest_in(one_cell, crop, queries, 10)
    true = np.mean(
        [len(set(a) & set(b)) / 10 for a, b in zip(exact.tolist(), found.tolist(), strict=True)]
    )
    assert said == pytest.approx(true, abs=0.08)
    assert not (found == queries[:, None]).any()
    assert (np.diff(distance[:, :5], axis=1) >= 0).all()
    kept = open_index(tmp_path / "x" / "i", crop, rows)
    again = open_index(tmp_path / "x" / "i", crop, rows)
    assert np.array_equal(
        nearest_in(kept, crop, queries, 5)[0], nearest_in(again, crop, queries, 5)[0]
    )


def test_without_faiss_the_way_out_is_named(crop: Crop, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from medapps.crop.similar import build_index

    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MedappsError, match=r"needs faiss.*pip install 'medapps\[ann\]'"):
        build_index(crop)


def test_the_index_of_a_crop_without_that_many_neighbours(crop: Crop) -> None:
    pytest.importorskip("faiss")
    from medapps.crop.similar import build_index, nearest_in

    few = replace(crop, users=crop.users[:4])
    index = build_index(few, few.users)
    found, distance = nearest_in(index, few, few.users[:1], 10)
    assert sorted(found[0].tolist()) == [-1] * 7 + sorted(few.users[1:].tolist())
    assert np.isinf(distance[0][3:]).all() and pl.Series(distance[0][:3]).is_sorted()


def test_a_damaged_index_is_built_again(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    crop = export_crop(make_crop(n=400), tmp_path / "a")
    asked = crop.entity_ids.names(crop.users[:40])
    right = search(crop, asked, 5, indexes=tmp_path / "i").table
    (file,) = (tmp_path / "i").glob("*/*.faiss")
    data = bytearray(file.read_bytes())
    for at in range(len(data) // 2, len(data) // 2 + 4000, 40):
        data[at] ^= 0xFF
    file.write_bytes(data)
    assert search(crop, asked, 5, indexes=tmp_path / "i").table.equals(right)


def test_an_unsaved_crop_gets_no_index_of_another(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    for seed in (1, 2):
        crop = make_crop(n=400, seed=seed)
        asked = crop.entity_ids.names(crop.users[:10])
        found = search(crop, asked, 1, indexes=tmp_path / "i").table
        exact = similar(crop, asked, 1)
        assert (found["neighbour"] == exact["neighbour"]).mean() > 0.8


def test_vectors_without_numbers_come_last_and_are_no_queries() -> None:
    crop = make_crop(n=30)
    expected = nearest(crop, np.array([0]), 29)[0][0].tolist()
    crop.entities[7, 1] = np.nan
    crop.entities[9, 0] = np.inf
    found, distance = nearest(crop, np.array([0]), 29)
    assert found[0].tolist() == [row for row in expected if row not in (7, 9)] + [-1, -1]
    assert np.isfinite(distance[0, :27]).all()
    with pytest.raises(MedappsError, match="not finite"):
        nearest(crop, np.array([0, 7]), 3)
