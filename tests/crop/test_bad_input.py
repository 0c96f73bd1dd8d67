"""Wrong files and wrong wishes end in a sentence that says what to do."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from medapps.arrays import write_arrays
from medapps.crop.crop import Crop, load_crop
from medapps.crop.export import Export, export_crop, export_files
from medapps.errors import MedappsError
from medapps.store import REPLACE
from medapps.store.manifest import FORMAT, Manifest, file_digest, signed
from tests.crop.conftest import make_crop

FORMS = {"safetensors": "vectors.safetensors", "npz": "crop.npz", "parquet": "entities.parquet"}


@pytest.mark.parametrize("form", FORMS)
def test_a_truncated_file_is_noticed(crop: Crop, tmp_path: Path, form: str) -> None:
    export_crop(crop, tmp_path / "a", Export(form=form))
    path = tmp_path / "a" / FORMS[form]
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(MedappsError, match=rf"{FORMS[form]} has .* bytes where .* were written"):
        load_crop(tmp_path / "a")


@pytest.mark.parametrize("form", FORMS)
def test_an_altered_byte_is_noticed(crop: Crop, tmp_path: Path, form: str) -> None:
    export_crop(crop, tmp_path / "a", Export(form=form))
    path = tmp_path / "a" / FORMS[form]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(MedappsError, match=rf"{FORMS[form]} was altered.*--force"):
        load_crop(tmp_path / "a")


def test_an_altered_byte_of_a_large_file_is_noticed_on_the_first_load(
    crop: Crop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("medapps.crop.crop.VERIFY_BELOW", 100)
    export_files(crop, tmp_path / "a", Export())
    path = tmp_path / "a" / "vectors.safetensors"
    whole, when = path.read_bytes(), path.stat()
    for load in range(2):  # before and after a load that found it whole
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns))
        with pytest.raises(MedappsError, match="was altered"):
            load_crop(tmp_path / "a")
        path.write_bytes(whole)
        assert load_crop(tmp_path / "a").dim == 10, load


def test_a_large_file_is_hashed_once(
    crop: Crop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("medapps.crop.crop.VERIFY_BELOW", 100)
    hashed: list[str] = []

    def counted(path: Path) -> str:
        hashed.append(path.name)
        return file_digest(path)

    export_files(crop, tmp_path / "a", Export())
    monkeypatch.setattr("medapps.store.reading.file_digest", counted)
    load_crop(tmp_path / "a")
    assert "vectors.safetensors" in hashed
    hashed.clear()
    load_crop(tmp_path / "a")
    assert not hashed
    load_crop(tmp_path / "a", verify=True)
    assert "vectors.safetensors" in hashed


def test_a_missing_file_is_named(crop: Crop, tmp_path: Path) -> None:
    crop.save(tmp_path / "a")
    (tmp_path / "a" / "entities.safetensors").unlink()
    with pytest.raises(MedappsError, match=r"entities.safetensors is missing"):
        load_crop(tmp_path / "a")


def _edit(folder: Path, **changes: object) -> None:
    """Change a manifest and sign it again, as someone with intent would."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(asdict(signed(Manifest(**manifest)))))


def test_another_format_version_is_refused(crop: Crop, tmp_path: Path) -> None:
    crop.save(tmp_path / "a")
    _edit(tmp_path / "a", format_version=99)
    with pytest.raises(MedappsError, match=rf"version 99; .* version {FORMAT}.*Upgrade"):
        load_crop(tmp_path / "a")


def test_an_edited_manifest_is_refused(crop: Crop, tmp_path: Path) -> None:
    crop.save(tmp_path / "a")
    path = tmp_path / "a" / "manifest.json"
    path.write_text(path.read_text().replace('"margin": 5.0', '"margin": 6.0'))
    with pytest.raises(MedappsError, match="was altered: its digest does not fit"):
        load_crop(tmp_path / "a")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", "a/b"])
def test_a_path_out_of_the_folder_is_refused(crop: Crop, tmp_path: Path, name: str) -> None:
    crop.save(tmp_path / "a")
    files = json.loads((tmp_path / "a" / "manifest.json").read_text())["files"]
    _edit(tmp_path / "a", files=files | {name: {"bytes": 1, "sha256": "0"}})
    with pytest.raises(MedappsError, match="names a file outside its folder"):
        load_crop(tmp_path / "a")


def test_a_link_out_of_the_folder_is_refused(crop: Crop, tmp_path: Path) -> None:
    crop.save(tmp_path / "a")
    inside, outside = tmp_path / "a" / "vectors.safetensors", tmp_path / "elsewhere"
    inside.rename(outside)
    inside.symlink_to(outside)
    with pytest.raises(MedappsError, match="leads out of its folder"):
        load_crop(tmp_path / "a")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 3}, "do not fit its manifest"),
        ({"dtype": "float16"}, "holds float32 instead of float16"),
        ({"spec": {"scorer": "transe", "shape": 1}}, "lacks or misnames"),
        ({"format": "pickle"}, "knows no format 'pickle'"),
    ],
)
def test_a_manifest_that_contradicts_its_files_is_refused(
    crop: Crop, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    crop.save(tmp_path / "a")
    about = json.loads((tmp_path / "a" / "manifest.json").read_text())["about"]
    _edit(tmp_path / "a", about=about | changes)
    with pytest.raises(MedappsError, match=message):
        load_crop(tmp_path / "a")


def test_a_folder_of_another_kind_or_none_is_refused(crop: Crop, tmp_path: Path) -> None:
    with pytest.raises(MedappsError, match="holds no crop"):
        load_crop(tmp_path)
    crop.save(tmp_path / "a")
    _edit(tmp_path / "a", kind="embedding")
    with pytest.raises(MedappsError, match="holds a embedding, not a crop"):
        load_crop(tmp_path / "a")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["u00001é", "nobody"], r"1 ids of the list are not in the embedding: 'nobody'.*--ids"),
        (["u00001é", "u00003é", "u00001é"], r"1 ids of the list are listed twice: 'u00001é'"),
        ([f"x{i}" for i in range(9)], r"9 ids .*'x0', 'x1', 'x2', 'x3', 'x4', \.\.\."),
        ([], "list of ids is empty"),
    ],
)
def test_bad_id_lists_are_refused(
    crop: Crop, tmp_path: Path, names: list[str], message: str
) -> None:
    with pytest.raises(MedappsError, match=message):
        export_crop(crop, tmp_path / "a", Export(names=pl.Series(names, dtype=pl.String)))
    assert not list(tmp_path.iterdir())


def test_an_existing_output_needs_force(crop: Crop, tmp_path: Path) -> None:
    export_crop(crop, tmp_path / "a")
    with pytest.raises(MedappsError, match=r"exists already.*--force"):
        export_crop(crop, tmp_path / "a", Export(dtype="int8"))
    assert load_crop(tmp_path / "a").dtype == "float32"
    assert export_crop(crop, tmp_path / "a", Export(dtype="int8"), REPLACE).dtype == "int8"


def test_a_foreign_folder_is_never_replaced(crop: Crop, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.tex").write_text("years of work")
    with pytest.raises(MedappsError, match="not a medapps folder"):
        export_crop(crop, tmp_path / "a", provenance=REPLACE)
    assert (tmp_path / "a" / "thesis.tex").exists()


def test_wishes_that_cannot_be_are_refused(crop: Crop, tmp_path: Path) -> None:
    for options, message in (
        ({"dtype": "int4"}, "--dtype takes float32, float16, int8, not 'int4'"),
        ({"form": "csv"}, "--format takes safetensors, parquet, npz, not 'csv'"),
        ({"users_only": True, "names": pl.Series(["a"])}, "exclude each other"),
    ):
        with pytest.raises(MedappsError, match=message):
            export_crop(crop, tmp_path / "a", Export(**options))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_numbers_that_are_not_finite_are_refused_and_nothing_is_left(
    crop: Crop, tmp_path: Path
) -> None:
    crop.entities[17, 3] = np.nan
    name = crop.entity_ids.names(np.array([17]))[0]
    with pytest.raises(MedappsError, match=f"vector of '{name}' holds a number .* not finite"):
        export_crop(crop, tmp_path / "a", Export(block_bytes=400))
    assert not [path for path in tmp_path.iterdir() if not path.name.endswith(".lock")]


def test_scoring_unknown_names_says_which(crop: Crop) -> None:
    with pytest.raises(MedappsError, match=r"'ghost' is not in this crop.*'u00001é'"):
        crop.score(["u00001é", "ghost"], ["r0", "r0"], ["u00001é", "u00003é"])


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("safetensors", "users.safetensors"),
        ("safetensors", "relations.safetensors"),
        ("parquet", "relations.parquet"),
    ],
)
def test_a_file_that_was_added_to_a_crop_is_not_read(
    crop: Crop, tmp_path: Path, form: str, name: str
) -> None:
    export_crop(crop, tmp_path / "a", Export(form=form, users_only=True, relations=False))
    other = make_crop(n=50, seed=9)
    write_arrays(tmp_path / "a" / name, {"users": other.users, "entities": other.entities})
    with pytest.raises(MedappsError, match=f"{name} does not belong to the crop"):
        load_crop(tmp_path / "a", verify=True)


def test_a_listed_file_of_users_replaces_no_vectors(crop: Crop, tmp_path: Path) -> None:
    """Even where its manifest is signed: users are all that is taken from it."""
    made = export_crop(crop, tmp_path / "a")
    path = tmp_path / "a" / "users.safetensors"
    write_arrays(path, {"users": crop.users, "entities": np.zeros_like(crop.entities)})
    files = json.loads((tmp_path / "a" / "manifest.json").read_text())["files"]
    size = {"bytes": path.stat().st_size, "sha256": file_digest(path)}
    _edit(tmp_path / "a", files=files | {path.name: size})
    assert np.array_equal(load_crop(tmp_path / "a").entities, made.entities)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "beside"), [("r[1]", "r1"), ("a?b", "axb"), ("a*b", "ab"), ("a%20b", "a b")]
)
def test_a_folder_is_taken_by_its_very_name(
    tmp_path: Path, form: str, name: str, beside: str
) -> None:
    mine, other = make_crop(seed=1), make_crop(seed=2)
    export_crop(other, tmp_path / beside, Export(form=form))
    export_crop(mine, tmp_path / name, Export(form=form))
    loaded = load_crop(tmp_path / name, verify=True)
    assert np.array_equal(loaded.entities, mine.entities)
    assert np.array_equal(np.asarray(loaded.relations), mine.relations)


@pytest.mark.parametrize(
    "changes", [{"dim": "10"}, {"rows": None}, {"spec": None}, {"spec": []}, {"format": []}]
)
def test_facts_of_wrong_types_are_one_sentence(
    crop: Crop, tmp_path: Path, changes: dict[str, object]
) -> None:
    crop.save(tmp_path / "a")
    about = json.loads((tmp_path / "a" / "manifest.json").read_text())["about"]
    _edit(tmp_path / "a", about=about | changes)
    with pytest.raises(MedappsError, match=r"crop .* cannot be used"):
        load_crop(tmp_path / "a")
