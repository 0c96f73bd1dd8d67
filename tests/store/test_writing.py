"""A saved folder or file is the old one or the new one, whatever happens meanwhile."""

from __future__ import annotations

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
from medapps.graph.synth import synthesize
from medapps.store import (
    REPLACE,
    lock,
    read_manifest,
    replacing,
    writing,
)
from tests.store.notes import content, write

CHILD = """
from pathlib import Path
from medapps.store import REPLACE, writing
def write(text):
    with writing(Path("note"), kind="note", provenance=REPLACE) as draft:
        draft.path("a.txt").write_text(text)
        draft.path("b.txt").write_text(text)
"""


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
