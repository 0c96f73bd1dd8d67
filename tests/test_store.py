"""A saved folder is the old one or the new one, and never a damaged one without a word."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import numpy as np
import polars as pl
import pytest

from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.graph.synth import synthesize
from medapps.store import (
    REPLACE,
    Provenance,
    Workspace,
    digest_of,
    lock,
    read_manifest,
    replacing,
    stage_key,
    writing,
)


def write(folder: Path, text: str, *, force: bool = False) -> None:
    with writing(folder, kind="note", provenance=Provenance(force=force)) as draft:
        draft.path("a.txt").write_text(text)
        draft.path("b.txt").write_text(text)


CHILD = """
from pathlib import Path
from medapps.store import REPLACE, writing
def write(text):
    with writing(Path("note"), kind="note", provenance=REPLACE) as draft:
        draft.path("a.txt").write_text(text)
        draft.path("b.txt").write_text(text)
"""


def content(folder: Path) -> str:
    """What a whole folder says; its two files must agree."""
    read_manifest(folder, kind="note")
    first, second = ((folder / name).read_text() for name in ("a.txt", "b.txt"))
    assert first == second
    return first


def hidden(folder: Path) -> list[str]:
    """Leftovers beside a folder, locks aside."""
    return [
        p.name for p in folder.parent.iterdir() if p.name.startswith(".") and p.suffix != ".lock"
    ]


def test_an_error_in_the_middle_leaves_the_old_folder(tmp_path: Path) -> None:
    folder = tmp_path / "note"
    write(folder, "old")
    with (
        pytest.raises(ZeroDivisionError),
        writing(folder, kind="note", provenance=REPLACE) as draft,
    ):
        draft.path("a.txt").write_text("new")
        raise ZeroDivisionError
    assert content(folder) == "old"
    assert hidden(folder) == []


def test_a_process_killed_at_any_moment_leaves_a_whole_folder(tmp_path: Path) -> None:
    code = (
        CHILD
        + """
for number in range(100000):
    write(str(number))
    print(number, flush=True)
"""
    )
    write(tmp_path / "note", "-1")
    for attempt in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.003 * attempt)
            process.send_signal(signal.SIGKILL)
            printed = process.stdout.read().split()
        last = int(printed[-1]) if printed else 0
        # the last one reported, or the one that was just coming into place
        assert int(content(tmp_path / "note")) in (last, last + 1)


def test_a_replacement_cut_off_between_its_renames_is_undone(tmp_path: Path) -> None:
    folder = tmp_path / "note"
    write(folder, "old")
    folder.rename(tmp_path / ".note.old")
    assert content(folder) == "old"
    folder.rename(tmp_path / ".note.old")
    with pytest.raises(MedappsError, match="exists already"):
        write(folder, "new")
    assert content(folder) == "old"


def test_leftovers_of_a_crash_after_the_renames_do_no_harm(tmp_path: Path) -> None:
    folder = tmp_path / "note"
    write(folder, "old")
    write(tmp_path / ".note.old", "older")
    write(tmp_path / ".note.part", "unfinished")
    write(folder, "new", force=True)
    assert content(folder) == "new"
    assert hidden(folder) == []


def test_readers_never_see_a_gap_while_a_writer_replaces(tmp_path: Path) -> None:
    folder = tmp_path / "note"
    write(folder, "0")
    code = CHILD + "for n in range(60): write(str(n))"
    writer = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    while writer.poll() is None:
        try:
            read_manifest(folder, kind="note")
        except MedappsError as error:  # files may change between two looks, the folder stays
            assert "holds no" not in str(error)
        except FileNotFoundError:
            pass
    assert writer.returncode == 0
    assert content(folder) == "59"


def test_a_writer_does_not_mind_a_reader_that_looks_between_two_renames(tmp_path: Path) -> None:
    """A reader holds the lock while it puts back what a crash left: a moment."""
    folder, held = tmp_path / "note", Event()

    def look() -> None:
        with lock(tmp_path / ".note.lock", "", wait=True):
            held.set()
            time.sleep(0.1)

    reader = Thread(target=look)
    reader.start()
    assert held.wait(5)
    write(folder, "0")
    reader.join()
    assert content(folder) == "0"


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


def test_a_second_writer_is_told_to_wait(tmp_path: Path) -> None:
    folder = tmp_path / "note"
    with writing(folder, kind="note") as draft:
        draft.path("a.txt").write_text("first")
        draft.path("b.txt").write_text("first")
        with pytest.raises(MedappsError, match=r"Another command is writing .* Wait for it"):
            write(folder, "second")
    assert content(folder) == "first"


def test_two_processes_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    code = (
        CHILD
        + """
import sys
from medapps.errors import MedappsError
for n in range(40):
    try:
        write(sys.argv[1] * 1000)
    except MedappsError as error:
        assert 'Another command' in str(error), error
"""
    )
    both = [subprocess.Popen([sys.executable, "-c", code, name], cwd=tmp_path) for name in "xy"]
    assert [process.wait() for process in both] == [0, 0]
    assert content(tmp_path / "note") in ("x" * 1000, "y" * 1000)
    assert hidden(tmp_path / "note") == []


def test_a_lock_can_be_waited_for(tmp_path: Path) -> None:
    code = (
        "import fcntl, time; f = open('l', 'a'); fcntl.flock(f, fcntl.LOCK_EX)\n"
        "print('held', flush=True); time.sleep(2)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(MedappsError, match="busy"), lock(tmp_path / "l", "busy"):
            pass
        with lock(tmp_path / "l", "busy", wait=True):
            # its two seconds are over
            assert holder.wait(5) == 0


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


def test_a_file_is_replaced_when_asked_and_never_an_input(tmp_path: Path) -> None:
    out, given, folder = tmp_path / "out.txt", tmp_path / "in.txt", tmp_path / "data"
    with replacing(out) as part:
        part.write_text("first")
        assert not out.exists()
    with pytest.raises(MedappsError, match=r"out\.txt exists already\. Use --force"):
        replacing(out).__enter__()
    with replacing(out, force=True) as part:
        part.write_text("second")
    with pytest.raises(ZeroDivisionError), replacing(out, force=True) as part:
        part.write_text("cut")
        raise ZeroDivisionError
    assert out.read_text() == "second" and hidden(out) == []
    folder.mkdir()
    (folder / "x.txt").write_text("x")
    given.symlink_to(out)
    (tmp_path / "hard.txt").hardlink_to(out)
    for one in (out, given, tmp_path / "hard.txt", tmp_path / "data" / ".." / "out.txt"):
        with pytest.raises(MedappsError, match="is an input of this command"):
            replacing(one, force=True, inputs=[None, out]).__enter__()
    with pytest.raises(MedappsError, match="is an input of this command"):
        replacing(folder / "x.txt", force=True, inputs=[folder]).__enter__()
    write(tmp_path / "note", "text")
    with pytest.raises(MedappsError, match="note is a folder that medapps keeps"):
        replacing(tmp_path / "note" / "a.txt", force=True).__enter__()
    with pytest.raises(MedappsError, match="is not a file"):
        replacing(folder, force=True).__enter__()


@pytest.mark.parametrize("name", ["x" * 300, "out.txt/x"])
def test_a_path_that_cannot_be_is_a_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "out.txt").touch()
    with pytest.raises(MedappsError, match="Cannot write"):
        replacing(tmp_path / name).__enter__()
    with pytest.raises(MedappsError, match=r"Cannot write|Cannot read|holds no"):
        write(tmp_path / name, "text")
    with pytest.raises(MedappsError, match=r"Cannot read|holds no"):
        read_manifest(tmp_path / name, kind="note")


def test_a_file_that_grows_too_large_leaves_the_old_one(tmp_path: Path) -> None:
    """The system's limit on the size of a file stands for a full disk: a write fails half way."""
    code = """
import resource, signal
from pathlib import Path
import polars as pl
from medapps.errors import MedappsError
from medapps.store import write_table
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for name in ("t.parquet", "t.csv"):
    write_table(pl.DataFrame({"x": [1]}), Path(name))
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
for name in ("t.parquet", "t.csv"):
    try:
        write_table(pl.DataFrame({"x": range(100_000)}), Path(name), force=True)
    except MedappsError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "Cannot write t.parquet",
        "Cannot write t.csv",
    ], done.stderr
    assert pl.read_parquet(tmp_path / "t.parquet")["x"].to_list() == [1]
    assert (tmp_path / "t.csv").read_text() == "x\n1\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "t.parquet"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True
    )
    if made.returncode:
        pytest.skip("mounting is not permitted here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("how", ["array", "table", "text"])
def test_a_full_disk_leaves_the_old_folder_and_a_sentence(how: str, small_disk: Path) -> None:
    folder = small_disk / "note"
    write(folder, "old")
    numbers = np.random.default_rng(0).random(1_000_000)
    with (
        pytest.raises(MedappsError, match=r"the disk is full\. Nothing half-written was left"),
        writing(folder, kind="note", provenance=REPLACE) as draft,
    ):
        if how == "array":
            draft.arrays("x.safetensors", {"x": numbers})
        elif how == "table":
            draft.table("x.parquet", pl.DataFrame({"x": numbers}))
        else:
            draft.path("x.txt").write_text("x" * 4_000_000)
    assert content(folder) == "old"
    assert hidden(folder) == []


def test_synth_on_a_full_disk(small_disk: Path) -> None:
    with pytest.raises(MedappsError, match="the disk is full"):
        synthesize(small_disk / "data", "demo", users=40_000)
    assert [path.name for path in small_disk.iterdir()] == [".data.lock"]


@pytest.mark.parametrize("name", ["t.parquet", "t.csv"])
def test_a_full_disk_leaves_the_old_file(name: str, small_disk: Path) -> None:
    from medapps.store import write_table

    write_table(pl.DataFrame({"x": [1]}), small_disk / name)
    before = (small_disk / name).read_bytes()
    numbers = np.random.default_rng(0).random(1_000_000)
    with pytest.raises(MedappsError, match=rf"Cannot write .*{name}: the disk is full"):
        write_table(pl.DataFrame({"x": numbers}), small_disk / name, force=True)
    assert (small_disk / name).read_bytes() == before
    assert [path.name for path in small_disk.iterdir()] == [name]


def test_a_read_only_disk(small_disk: Path) -> None:
    write(small_disk / "note", "old")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert content(small_disk / "note") == "old"
    with pytest.raises(MedappsError, match=r"Cannot write .* the disk is read-only"):
        write(small_disk / "other", "new")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(MedappsError, match="you have no permission"):
        write(tmp_path / "note", "new")


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "workspace").touch()
    with pytest.raises(MedappsError, match="part of the path is a file"):
        write(tmp_path / "workspace" / "note" / "x", "new")


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
