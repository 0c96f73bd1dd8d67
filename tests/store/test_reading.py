"""What is read is what was written, and only what medapps wrote is replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.store import (
    REPLACE,
    Provenance,
    Workspace,
    digest_of,
    read_manifest,
    stage_key,
    writing,
)
from tests.store.notes import content, write


def test_a_flipped_byte_is_named(tmp_path: Path) -> None:
    write(tmp_path / "note", "text")
    (tmp_path / "note" / "b.txt").write_text("tExt")
    with pytest.raises(MedappsError, match=r"b\.txt was altered .* again with --force"):
        read_manifest(tmp_path / "note", kind="note")
    (tmp_path / "note" / "b.txt").write_text("te")
    with pytest.raises(MedappsError, match=r"b\.txt has 2 bytes where 4 were written"):
        read_manifest(tmp_path / "note", kind="note")
    (tmp_path / "note" / "b.txt").unlink()
    with pytest.raises(MedappsError, match=r"b\.txt is missing"):
        read_manifest(tmp_path / "note", kind="note")


def test_a_flipped_byte_of_a_graph_is_named(tiny: Graph, tmp_path: Path) -> None:
    tiny.save(tmp_path / "g")
    path = tmp_path / "g" / "triples.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(MedappsError, match=r"triples\.safetensors was altered"):
        Graph.load(tmp_path / "g")


def edit(folder: Path, *, sign: bool = True, **changes: object) -> None:
    """Change a manifest; signed, as one who knows the format would."""
    path = folder / "manifest.json"
    values = json.loads(path.read_text()) | changes
    if sign:
        keys = ("kind", "format_version", "about", "files")
        values["digest"] = digest_of({key: values[key] for key in keys})
        values["seal"] = digest_of(values | {"seal": ""})
    path.write_text(json.dumps(values))


def test_manifests_that_lie_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "note"
    write(folder, "text")
    good = (folder / "manifest.json").read_text()
    for changes, words in (
        ({"format_version": 4}, "format version 4; this medapps .* Upgrade medapps"),
        ({"format_version": 4, "novelty": 1}, "format version 4; this medapps .* Upgrade medapps"),
        ({"format_version": 1}, "made by an older version of medapps. Make .* again with --force"),
        ({"kind": "graph"}, "holds a graph, not a note"),
        ({"files": {"../secret": {"bytes": 0, "sha256": ""}}}, "outside its folder: '../secret'"),
        ({"files": {"/etc/passwd": {"bytes": 0, "sha256": ""}}}, "outside its folder"),
        ({"surprise": 1}, "is damaged"),
    ):
        (folder / "manifest.json").write_text(good)
        edit(folder, **changes)
        with pytest.raises(MedappsError, match=words):
            read_manifest(folder, kind="note")
    (folder / "manifest.json").write_text(good)
    edit(folder, sign=False, about={"better": True})
    with pytest.raises(MedappsError, match="its digest does not fit its content"):
        read_manifest(folder, kind="note")
    (folder / "manifest.json").write_text(good[:50])
    with pytest.raises(MedappsError, match="is damaged"):
        read_manifest(folder, kind="note")


def test_other_peoples_folders_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(MedappsError, match="is not a medapps folder, so it is not replaced"):
        write(tmp_path / "photos", "x", force=True)
    assert (tmp_path / "photos" / "cat.jpg").exists()


@pytest.mark.parametrize(
    "manifest",
    [
        {"name": "a web extension", "version": 3},
        {
            "kind": "dataset",
            "format_version": 3,
            "about": {},
            "files": {},
            "created": "",
            "digest": "",
        },
        [],
    ],
)
def test_a_foreign_manifest_does_not_make_a_folder_ours(tmp_path: Path, manifest: object) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(MedappsError, match="so it is not replaced"):
        write(folder, "x", force=True)
    assert (folder / "thesis.tex").read_text() == "years of work"


def test_only_the_same_kind_with_nothing_added_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "note"
    with writing(folder, kind="poem") as draft:
        draft.path("a.txt").write_text("a poem")
    with pytest.raises(MedappsError, match="holds a poem, not a note, so it is not replaced"):
        write(folder, "x", force=True)
    with writing(folder, kind="poem", provenance=REPLACE) as draft:
        draft.path("b.txt").write_text("another")
    (folder / "mine.txt").write_text("added by hand")
    with pytest.raises(MedappsError, match=r"also holds mine\.txt, which medapps did not write"):
        writing(folder, kind="poem", provenance=REPLACE).__enter__()
    assert (folder / "mine.txt").exists() and (folder / "b.txt").exists()
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(MedappsError, match="is not a folder, so it is not replaced"):
        writing(tmp_path / "link", kind="poem", provenance=REPLACE).__enter__()


def test_a_noun_of_an_older_version_or_with_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "note"
    write(folder, "old")
    values = json.loads((folder / "manifest.json").read_text())
    del values["seal"]  # as the first version wrote it
    (folder / "manifest.json").write_text(json.dumps(values | {"format_version": 1}))
    (folder / "a.txt").write_text("damaged")
    with pytest.raises(MedappsError, match=r"older version of medapps\. Make the note again"):
        read_manifest(folder, kind="note")
    write(folder, "new", force=True)
    assert content(folder) == "new"


@pytest.mark.parametrize("name", ["c.parquet", "c.safetensors", "c.json"])
def test_a_file_that_the_manifest_does_not_list_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path / "note", "text")
    (tmp_path / "note" / name).write_text("slipped in")
    with pytest.raises(MedappsError, match=f"{name} does not belong to the note"):
        read_manifest(tmp_path / "note", kind="note")
    (tmp_path / "note" / name).rename(tmp_path / "note" / ".DS_Store")
    assert content(tmp_path / "note") == "text"


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"lr": 1}},
        {"parents": {"graph": "another"}},
        {"metrics": {"mrr": 0.999}},
        {"created": "2099-01-01"},
        {"seconds": 1},
        {"bytes": 1},
        {"medapps_version": "9"},
    ],
)
def test_nothing_that_a_manifest_states_can_be_edited(tmp_path: Path, changes: dict) -> None:
    write(tmp_path / "note", "text")
    edit(tmp_path / "note", sign=False, **changes)
    with pytest.raises(MedappsError, match="its digest does not fit its content"):
        read_manifest(tmp_path / "note", kind="note")


def test_equal_content_has_equal_digests_whenever_it_is_made(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with writing(
            tmp_path / name, kind="note", provenance=Provenance(parents={"run": name})
        ) as draft:
            draft.path("a.txt").write_text("text")
            draft.about = {"sizes": {10: "ten", 9: "nine"}}  # sorts otherwise as text
    one, two = (read_manifest(tmp_path / name, kind="note") for name in ("a", "b"))
    assert one.digest == two.digest and one.seal != two.seal


@pytest.mark.parametrize(
    "changes",
    [
        {"files": None},
        {"files": {"a.txt": None}},
        {"files": {"a.txt": {"bytes": 4}}},
        {"files": {"a.txt": {"sha256": "0" * 64}}},
        {"files": {"a.txt": {"bytes": "4", "sha256": "0" * 64}}},
        {"files": {"x" * 300: {"bytes": 4, "sha256": "0" * 64}}},
        {"about": None},
        {"about": []},
        {"parents": {"run": 3}},
        {"metrics": {"mrr": "high"}},
        {"kind": 1},
        {"format_version": True},
        {"format_version": "3"},
        {"digest": None},
        {"created": 5},
    ],
)
def test_a_manifest_of_wrong_types_is_one_sentence(tmp_path: Path, changes: dict) -> None:
    space = Workspace(tmp_path)
    write(space.folder("note", "k"), "text")
    edit(space.folder("note", "k"), sign=False, **changes)
    with pytest.raises(MedappsError, match=r"manifest\.json is damaged: .* Delete the folder"):
        read_manifest(space.folder("note", "k"), kind="note")
    assert space.newest("note", name="k") is None and space.finished("note", "k") is None


def test_a_manifest_that_is_no_object_is_one_sentence(tmp_path: Path) -> None:
    write(tmp_path / "note", "text")
    for text in ("[]", "null", "3", "[" * 100_000, "\udcff"):
        (tmp_path / "note" / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(MedappsError, match="is damaged"):
            read_manifest(tmp_path / "note", kind="note")


def test_about_is_checked_where_it_is_used(tiny: Graph, tmp_path: Path) -> None:
    tiny.save(tmp_path / "g")
    edit(tmp_path / "g", about={"name": "g"})
    with pytest.raises(MedappsError, match=r"graph .* cannot be used: .*'source'"):
        Graph.load(tmp_path / "g")


def test_unfinished_and_replaced_folders_do_not_count(tmp_path: Path) -> None:
    space = Workspace(tmp_path)
    for key in ("k", ".k.part", ".j.old"):
        write(space.folder("note", key), key)
    assert space.saved("note") == [space.folder("note", "k")]
    assert space.newest("note") == space.folder("note", "k")


def test_a_workspace_knows_what_is_finished_and_what_is_newest(tmp_path: Path) -> None:
    space = Workspace(tmp_path)
    assert space.finished("note", "k") is None and space.newest("note") is None
    for key in ("k", "l"):
        with writing(space.folder("note", key), kind="note") as draft:
            draft.about = {"name": key}
            draft.path("a.txt").write_text(key)
    assert space.finished("note", "k") == space.folder("note", "k")
    assert space.newest("note") == space.folder("note", "l")
    assert space.newest("note", name="k") == space.folder("note", "k")
    (space.folder("note", "k") / "a.txt").write_text("K")
    assert space.finished("note", "k") is None


def test_a_stage_key_follows_everything_that_matters() -> None:
    base = ("train", 1, {"a": 1, "b": 2}, {"graph": "x"})
    same = stage_key("train", 1, {"b": 2, "a": 1}, {"graph": "x"})
    assert stage_key(*base) == same
    others = [("crop", *base[1:]), ("train", 2, *base[2:]), (*base[:2], {"a": 2}, base[3])]
    others.append((*base[:3], {"graph": "y"}))
    assert len({same, *(stage_key(*other) for other in others)}) == 5
