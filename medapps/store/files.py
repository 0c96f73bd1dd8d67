"""Files and folders on disk: locks, replacement in one step, and what the system says of a path."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import IO, TYPE_CHECKING

from medapps.errors import MedappsError
from medapps.store.manifest import MANIFEST

if TYPE_CHECKING:
    import polars as pl

_TABLES = (".parquet", ".csv", ".tsv")
PATIENCE = 0.5
"""Seconds after which a lock is held by another writer, not by a reader."""


def refuse_output(out: Path, *, force: bool = False, inputs: Iterable[Path | None] = ()) -> None:
    """Refuse to write where something is that would be lost: an input, or unasked any file."""
    with disk_errors(out):
        if (out.parent / MANIFEST).is_file():
            raise MedappsError(
                f"{out.parent} is a folder that medapps keeps; {out.name} does not belong there.",
                fix="Name a file elsewhere.",
            )
        try:
            out.lstat()  # says of a name that cannot be why
        except FileNotFoundError:
            return
        if not out.is_file():
            raise MedappsError(f"{out} is not a file.", fix="Name another one.")
        for given in inputs:
            if given is not None and given.exists() and _holds(given, out):
                raise MedappsError(
                    f"{out} is an input of this command, so it is not replaced.",
                    fix="Name another file.",
                )
        if not force:
            raise MedappsError(f"{out} exists already.", fix="Use --force to replace it.")


def _holds(given: Path, out: Path) -> bool:
    """Is `out` the file `given`, or one in the folder `given`?"""
    return given.samefile(out) or (given.is_dir() and out.resolve().is_relative_to(given.resolve()))


@contextmanager
def replacing(
    out: Path, *, force: bool = False, inputs: Iterable[Path | None] = ()
) -> Iterator[Path]:
    """A file to write beside `out`, which takes its place when the block ends well."""
    out = Path(out)
    refuse_output(out, force=force, inputs=inputs)
    with disk_errors(out):
        place = out.resolve()  # of a link its target
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f".medapps-{os.getpid()}.part")
        try:
            yield part
            sync(part)
            part.replace(place)
            sync(place.parent)
        finally:
            part.unlink(missing_ok=True)


def check_table_name(out: Path) -> None:
    """Refuse a table whose form its name does not tell."""
    if out.suffix not in _TABLES:
        raise MedappsError(
            f"Cannot tell the format of {out}.", fix="End the name in .parquet, .csv or .tsv."
        )


def write_table(table: pl.DataFrame, out: Path, *, force: bool = False) -> None:
    """Write Parquet, CSV or TSV by the ending of the name; lists become text in the latter."""
    import polars as pl

    with replacing(out, force=force) as part:
        if out.suffix == ".parquet":
            table.write_parquet(part)
            return
        lists = [name for name, kind in table.schema.items() if isinstance(kind, pl.List)]
        flat = table.with_columns(
            pl.col(name).cast(pl.List(pl.String)).list.join(";") for name in lists
        )
        flat.write_csv(part, separator="," if out.suffix == ".csv" else "\t")


def write_text(path: Path, text: str) -> None:
    """Replace a text file in one step."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    sync(part)
    part.replace(path)


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def lock(path: Path, busy: str, *, wait: bool = False) -> Iterator[None]:
    """Hold an exclusive lock on `path`; when it is held elsewhere, wait or say `busy`."""
    with path.open("a") as file:
        if wait:
            fcntl.flock(file, fcntl.LOCK_EX)
        elif not _taken(file):
            raise MedappsError(busy, fix="Wait for it to end, or use another --workspace.")
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def _taken(file: IO[str]) -> bool:
    """Take the lock if nobody else keeps it; a reader holds it for the time of a rename."""
    end = monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic() > end:
                return False
            sleep(PATIENCE / 50)
        else:
            return True


_DISK_PROBLEMS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the disk is read-only",
    errno.EACCES: "you have no permission",
    errno.EPERM: "you have no permission",
    errno.ENOTDIR: "part of the path is a file",
    errno.EEXIST: "part of the path is a file",
}


@contextmanager
def disk_errors(path: Path, doing: str = "write") -> Iterator[None]:
    """Turn whatever the system says about a path into a sentence."""
    try:
        yield
    except (MedappsError, ConnectionError):
        raise
    except Exception as error:
        number = _os_error(error)
        if not number:
            raise
        problem = _DISK_PROBLEMS.get(number) or os.strerror(number).lower()
        if doing == "read":
            raise MedappsError(f"Cannot read {path}: {problem}.") from error
        raise MedappsError(
            f"Cannot write {path}: {problem}. Nothing half-written was left.",
            fix="Free some space or choose another place.",
        ) from error


def _os_error(error: Exception) -> int:
    """The system's error number; polars only writes it into the text."""
    number = getattr(error, "errno", None)
    found = re.search(r"\(os error (\d+)\)", str(error)) if number is None else None
    return int(found[1]) if found else number or 0
