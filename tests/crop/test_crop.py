"""A crop on disk is the crop in memory: every form, every number type."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from medapps.arrays import open_arrays, write_arrays
from medapps.crop.crop import Crop, load_crop
from medapps.crop.export import Export, export_crop
from medapps.crop.quantize import DTYPES
from medapps.errors import MedappsError
from medapps.graph.ids import IdMap
from tests.contracts import assert_maker, assert_same, assert_sound
from tests.crop.conftest import make_crop

FORMS = ("safetensors", "npz", "parquet")


@pytest.mark.parametrize("integers", [False, True])
def test_a_crop_keeps_the_contract(tmp_path: Path, integers: bool) -> None:
    assert_maker(lambda: make_crop(integers=integers), tmp_path)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("integers", [False, True])
def test_every_form_holds_the_same_crop(
    tmp_path: Path, form: str, dtype: str, integers: bool
) -> None:
    source = make_crop(integers=integers)
    reference = export_crop(source, tmp_path / "reference", Export(dtype=dtype))
    written = export_crop(source, tmp_path / "a", Export(dtype=dtype, form=form, block_bytes=700))
    assert_sound(written)
    assert_same(written, reference)  # block size and form do not matter
    assert written.dtype == dtype
    assert written.manifest is not None and written.manifest.about["format"] == form


def test_float32_rows_and_scores_are_those_in_memory_bit_for_bit(
    crop: Crop, tmp_path: Path
) -> None:
    loaded = export_crop(crop, tmp_path / "a")
    rng = np.random.default_rng(1)
    heads, tails = (crop.entity_ids.names(rng.integers(0, 200, 500)) for _ in "ht")
    relations = crop.relation_ids.names(rng.integers(0, 4, 500))  # type: ignore[union-attr]
    assert np.array_equal(
        crop.score(heads, relations, tails), loaded.score(heads, relations, tails)
    )
    naive = [
        5.0
        - 1.5
        * np.linalg.norm(
            crop.entities[h].astype(float) + crop.relations[r] - crop.entities[t]  # type: ignore[index]
        )
        for h, r, t in zip(
            crop.entity_ids.ids(heads),
            crop.relation_ids.ids(relations),  # type: ignore[union-attr]
            crop.entity_ids.ids(tails),
            strict=True,
        )
    ]
    assert np.allclose(loaded.score(heads, relations, tails), naive, atol=2e-5)


def test_a_narrow_view_of_a_wide_table_exports_as_its_copy(tmp_path: Path) -> None:
    wide = make_crop(dim=40)
    view = replace(wide, entities=wide.entities[:, :10], relations=wide.relations[:, :10], dim=10)  # type: ignore[index]
    copy = replace(view, entities=view.entities.copy(), relations=view.relations.copy())  # type: ignore[union-attr]
    assert_same(export_crop(view, tmp_path / "a"), export_crop(copy, tmp_path / "b"))
    some = pl.Series(["u00001é", "u00003é"])
    assert np.array_equal(
        view.score(some, ["r0", "r1"], some), copy.score(some, ["r0", "r1"], some)
    )


def test_loading_maps_and_does_not_read(crop: Crop, tmp_path: Path) -> None:
    for form in ("safetensors", "npz"):
        loaded = export_crop(crop, tmp_path / form, Export(form=form))
        assert isinstance(loaded.entities, np.memmap)
        assert not loaded.entities.flags.writeable


def test_other_tools_read_the_files(crop: Crop, tmp_path: Path) -> None:
    export_crop(crop, tmp_path / "p", Export(form="parquet"))
    table = pl.read_parquet(tmp_path / "p" / "entities.parquet")
    assert table.schema["vector"] == pl.Array(pl.Float32, 10)
    assert table["id"].to_list() == crop.entity_ids.names().to_list()
    assert np.array_equal(table["vector"].to_numpy(), crop.entities)
    assert table["user"].sum() == 100
    export_crop(crop, tmp_path / "n", Export(form="npz", dtype="int8"))
    with np.load(tmp_path / "n" / "crop.npz") as archive:
        assert archive["entities"].dtype == np.int8 and len(archive["scale"]) == 200
    from safetensors.numpy import load_file

    export_crop(crop, tmp_path / "s")
    assert np.array_equal(
        load_file(tmp_path / "s" / "vectors.safetensors")["entities"], crop.entities
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_pyarrow_and_duckdb_read_the_parquet_table(crop: Crop, tmp_path: Path, dtype: str) -> None:
    export_crop(crop, tmp_path / "p", Export(form="parquet", dtype=dtype))
    path = tmp_path / "p" / "entities.parquet"
    arrow = pytest.importorskip("pyarrow.parquet").read_table(path)
    assert arrow.schema.field("vector").type.list_size == 10
    assert arrow["id"].to_pylist() == crop.entity_ids.names().to_list()
    duckdb = pytest.importorskip("duckdb")
    row = duckdb.sql(f"select vector from '{path}' where id = 'u00001é'").fetchall()[0]
    stored = load_crop(tmp_path / "p").entities[crop.entity_ids.ids(["u00001é"])[0]]
    assert np.array_equal(np.array(row[0], stored.dtype), stored)


def test_users_only_and_lists_keep_the_right_rows(crop: Crop, tmp_path: Path) -> None:
    users = export_crop(crop, tmp_path / "u", Export(users_only=True))
    assert_sound(users)
    expected = crop.entity_ids.names(crop.users)
    assert users.entity_ids.names().to_list() == expected.to_list()
    assert np.array_equal(users.entities, crop.entities[crop.users])
    assert np.array_equal(users.users, np.arange(100))
    assert not (tmp_path / "u" / "users.safetensors").exists()  # all rows: nothing to store
    wanted = ["u00007é", "i00002é", "u00001é"]
    few = export_crop(crop, tmp_path / "f", Export(names=pl.Series(wanted), relations=False))
    assert_sound(few)
    assert few.entity_ids.names().to_list() == sorted(wanted)
    assert np.array_equal(few.vectors(wanted)[0], crop.vectors(wanted)[0])
    assert few.entity_ids.names(few.users).to_list() == ["u00001é", "u00007é"]
    with pytest.raises(MedappsError, match=r"carries no relations.*--relations"):
        few.score(["u00007é"], ["r0"], ["u00001é"])


def test_numbers_from_a_text_file_find_integer_ids(tmp_path: Path) -> None:
    source = make_crop(integers=True)
    few = export_crop(source, tmp_path / "f", Export(names=pl.Series(["14", " 7"])))
    assert few.entity_ids.names().to_list() == [7, 14]


def test_exporting_again_to_the_same_type_changes_nothing(crop: Crop, tmp_path: Path) -> None:
    for dtype in DTYPES:
        first = export_crop(crop, tmp_path / dtype, Export(dtype=dtype))
        assert_same(first, export_crop(first, tmp_path / f"{dtype}2", Export(dtype=dtype)))


def test_the_manifest_says_how_to_score_and_where_it_came_from(crop: Crop, tmp_path: Path) -> None:
    saved = crop.save(tmp_path / "parent")
    child = export_crop(saved, tmp_path / "a", Export(dtype="int8", about={"tier": "phone"}))
    manifest = child.manifest
    assert manifest is not None and saved.manifest is not None
    assert manifest.about["spec"] == {
        "scorer": "transe", "norm": "l2", "scale": 1.5, "margin": 5.0
    }  # fmt: skip
    assert manifest.about["run_id"] == "abc" and manifest.about["tier"] == "phone"
    assert manifest.parents == {"crop": saved.manifest.digest}
    assert set(manifest.files) == {
        "vectors.safetensors", "entities.safetensors", "relations.safetensors", "users.safetensors"
    }  # fmt: skip
    assert all(len(entry["sha256"]) == 64 for entry in manifest.files.values())


def test_exporting_a_mapped_source_leaves_no_pages_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("medapps.crop.formats.PIECE", 2**20)
    rows = 20_000
    values = np.random.default_rng(0).random((rows, 500), np.float32)
    write_arrays(tmp_path / "wide.safetensors", {"x": values})
    mapped = open_arrays(tmp_path / "wide.safetensors")["x"]
    ids = IdMap.of_sorted(pl.Series(np.arange(rows)))
    crop = replace(
        make_crop(),
        entities=mapped[:, :10],
        entity_ids=ids,
        dim=10,
        relations=None,
        relation_ids=None,
        users=np.empty(0, np.int32),
        scale=None,
    )
    kept = export_crop(crop, tmp_path / "crop", Export(dtype="float32"))
    assert np.array_equal(kept.entities, values[:, :10])
    path = str(tmp_path / "wide.safetensors")
    maps = Path("/proc/self/smaps").read_text().split("VmFlags")
    held = [int(re.search(r"Rss:\s+(\d+) kB", part)[1]) for part in maps if path in part]
    assert held and sum(held) < 0.2 * values.nbytes / 1024
