"""Saved nouns: a folder with a manifest, written whole or not at all, checked when read.

`writing(folder, ...)` fills a hidden sibling and renames it into place, so that a crash leaves the
old folder or the new one; only a folder of the same kind that medapps wrote is ever replaced. The
manifest names every file with its size and SHA-256; `read_manifest` compares them. `replacing(out)`
does the same for a single file that a user asks for.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import IO, TYPE_CHECKING, Any, ParamSpec, TypeVar

from medapps import __version__
from medapps.arrays import Blocks, Hole, write_arrays
from medapps.errors import MedappsError
from medapps.manifest import (
    FORMAT,
    MANIFEST,
    Manifest,
    content_digest,
    digest_of,
    file_digest,
    manifest_text,
    parse_manifest,
    seal_of,
)

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

__all__ = [
    "MANIFEST",
    "Draft",
    "Manifest",
    "Workspace",
    "digest_of",
    "disk_errors",
    "file_digest",
    "lock",
    "read_manifest",
    "refuse_folder",
    "refuse_output",
    "replacing",
    "stage_key",
    "usable",
    "write_text",
    "writing",
]
VERIFY_BELOW = 2**30
"""Files up to this many bytes are hashed on every load; larger ones on the first."""
PATIENCE = 0.5
"""Seconds after which a lock is held by another writer, not by a reader."""
_MEANT = {".safetensors", ".parquet", ".npz", ".json", ".onnx"}
"""Files that a saved folder is read from; none may stand there unlisted."""


class Draft:
    """The unfinished folder that `writing` yields; becomes visible when the block ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about: dict[str, Any] = {}
        self.metrics: dict[str, float] = {}
        self.digests: dict[str, str] = {}

    def path(self, name: str) -> Path:
        return self.folder / name

    def arrays(self, name: str, arrays: Mapping[str, np.ndarray | Blocks | Hole]) -> None:
        digest = write_arrays(self.folder / name, arrays)
        if digest is not None:
            self.digests[name] = digest

    def table(self, name: str, frame: pl.DataFrame) -> None:
        frame.write_parquet(self.folder / name)

    def json(self, name: str, value: object) -> None:
        (self.folder / name).write_text(json.dumps(value, indent=1, sort_keys=True))


@contextmanager
def writing(
    folder: Path,
    *,
    kind: str,
    format_version: int = FORMAT,
    config: Mapping[str, Any] | None = None,
    parents: Mapping[str, str] | None = None,
    force: bool = False,
) -> Iterator[Draft]:
    """Write a noun into `folder`: everything in the block, or nothing."""
    began = perf_counter()
    folder = Path(folder)
    if folder.name in ("", ".."):
        folder = folder.resolve()
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with lock(_lock_file(folder), f"Another command is writing {folder}."):
            _put_back(folder)
            refuse_folder(folder, kind, force=force)
            part = folder.parent / f".{folder.name}.part"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            try:
                draft = Draft(part)
                yield draft
                _seal(draft, kind, format_version, config or {}, parents or {}, began)
                _replace(part, folder)
            finally:
                shutil.rmtree(part, ignore_errors=True)


def refuse_folder(folder: Path, kind: str, *, force: bool = False) -> None:
    """Let only an empty folder, or a noun of this kind with nothing added, be replaced."""

    def refuse(why: str) -> MedappsError:
        return MedappsError(
            f"{folder} {why}, so it is not replaced.", fix="Name another folder, or move it away."
        )

    if not os.path.lexists(folder):
        return
    if not force:
        raise MedappsError(f"{folder} exists already.", fix="Use --force to replace it.")
    if folder.is_symlink() or not folder.is_dir():
        raise refuse("is not a folder")
    inside = {path.name for path in folder.iterdir()}
    if not inside:
        return
    try:
        found = parse_manifest((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        raise refuse("is not a medapps folder") from None
    if found.kind != kind:
        raise refuse(f"holds a {found.kind}, not a {kind}")
    if strange := sorted(inside - {MANIFEST, *found.files}):
        raise refuse(f"also holds {strange[0]}, which medapps did not write")


def _seal(
    draft: Draft,
    kind: str,
    format_version: int,
    config: Mapping[str, Any],
    parents: Mapping[str, str],
    began: float,
) -> None:
    files: dict[str, dict[str, Any]] = {
        path.name: {
            "bytes": path.stat().st_size,
            "sha256": draft.digests.get(path.name) or file_digest(path),
        }
        for path in sorted(draft.folder.iterdir())
    }
    manifest = Manifest(
        kind=kind,
        format_version=format_version,
        about=draft.about,
        config=dict(config),
        parents=dict(parents),
        metrics=draft.metrics,
        files=files,
        seconds=round(perf_counter() - began, 6),
        bytes=sum(entry["bytes"] for entry in files.values()),
        created=datetime.now(UTC).isoformat(),
    )
    write_text(draft.folder / MANIFEST, manifest_text(manifest))
    for path in draft.folder.iterdir():
        _sync(path)
    _sync(draft.folder)


def _replace(part: Path, folder: Path) -> None:
    old = _old(folder)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)  # left by a crash after both renames
        folder.replace(old)
    part.replace(folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _old(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.old"


def _lock_file(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.lock"


def _put_back(folder: Path) -> None:
    """Undo a replacement that was cut off between its two renames; the lock is held."""
    if _old(folder).exists() and not folder.exists():
        _old(folder).replace(folder)


def _recover(folder: Path) -> None:
    """The same for a reader, after any writer that is between the two has gone on."""
    if _old(folder).exists() and not folder.exists():
        with lock(_lock_file(folder), "", wait=True):
            _put_back(folder)


def read_manifest(
    folder: Path, *, kind: str, format_version: int = FORMAT, verify_below: int = VERIFY_BELOW
) -> Manifest:
    """The manifest of a saved noun, after its files have been compared with it.

    Files up to `verify_below` bytes are hashed on every load and larger ones on the first; 0
    compares sizes only.
    """
    folder = Path(folder)
    path = folder / MANIFEST
    again = f"Make the {kind} again with --force."
    with disk_errors(folder, "read"):
        for _ in range(3):  # a writer may be between its renames, even twice
            if path.is_file():
                break
            _recover(folder)
        else:
            raise MedappsError(f"{folder} holds no {kind}: it has no {MANIFEST}.")
        try:
            manifest = parse_manifest(path.read_text())
        except ValueError as error:
            fix = f"Delete the folder and make the {kind} again."
            raise MedappsError(f"{path} is damaged: {error}.", fix=fix) from error
        if manifest.kind != kind:
            raise MedappsError(f"{folder} holds a {manifest.kind}, not a {kind}.")
        if manifest.format_version < format_version:
            raise MedappsError(f"{folder} was made by an older version of medapps.", fix=again)
        if manifest.format_version > format_version:
            raise MedappsError(
                f"{folder} has format version {manifest.format_version}; this medapps "
                f"({__version__}) reads version {format_version}.",
                fix="Upgrade medapps.",
            )
        if manifest.digest != content_digest(manifest) or manifest.seal != seal_of(manifest):
            problem = f"{path} was altered: its digest does not fit its content."
            raise MedappsError(problem, fix=again)
        _refuse_unlisted(folder, manifest)
        for name, entry in manifest.files.items():
            _verify(folder / name, entry, verify_below, again)
    return manifest


def _refuse_unlisted(folder: Path, manifest: Manifest) -> None:
    """A file that could be taken for a part of the noun must be one."""
    for path in folder.iterdir():
        listed = path.name == MANIFEST or path.name in manifest.files
        if not listed and path.suffix in _MEANT and not path.name.startswith("."):
            problem = f"{path} does not belong to the {manifest.kind}: its manifest lists no such"
            raise MedappsError(f"{problem} file.", fix="Move it elsewhere.")


def _verify(path: Path, entry: Mapping[str, Any], verify_below: int, again: str) -> None:
    if not path.is_file():
        raise MedappsError(f"{path} is missing.", fix=again)
    size = path.stat().st_size
    if size != entry["bytes"]:
        raise MedappsError(
            f"{path} has {size:,} bytes where {entry['bytes']:,} were written.", fix=again
        )
    if not verify_below or (size > verify_below and _checked_before(path, entry)):
        return
    if file_digest(path) != entry["sha256"]:
        raise MedappsError(f"{path} was altered since it was written.", fix=again)
    if size > verify_below:
        with suppress(OSError):  # a disk that is only read is checked again next time
            write_text(_note(path), json.dumps(_state(path, entry)))


def _note(path: Path) -> Path:
    """Where it is written that a large file was hashed and found whole."""
    return path.parent.parent / f".{path.parent.name}.{path.name}.checked"


def _state(path: Path, entry: Mapping[str, Any]) -> list[Any]:
    """Changes with every write to the file, whatever its time is set to."""
    stat = path.stat()
    return [entry["sha256"], stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]


def _checked_before(path: Path, entry: Mapping[str, Any]) -> bool:
    try:
        return bool(json.loads(_note(path).read_text()) == _state(path, entry))
    except (OSError, ValueError):
        return False


P = ParamSpec("P")
Noun = TypeVar("Noun")


def usable(kind: str) -> Callable[[Callable[P, Noun]], Callable[P, Noun]]:
    """Wraps the loader of a noun: what its manifest says but cannot mean becomes a sentence."""

    def decorate(load: Callable[P, Noun]) -> Callable[P, Noun]:
        @wraps(load)
        def checked(*args: P.args, **given: P.kwargs) -> Noun:
            try:
                return load(*args, **given)
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                places = (value for value in args if isinstance(value, str | Path))
                raise MedappsError(
                    f"The {kind} {next(places, '')} cannot be used: its manifest lacks or misnames "
                    f"something ({type(error).__name__}: {error}).",
                    fix="Make it again with --force.",
                ) from error

        return checked

    return decorate


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
            _sync(part)
            part.replace(place)
            _sync(place.parent)
        finally:
            part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a text file in one step."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    _sync(part)
    part.replace(path)


def _sync(path: Path) -> None:
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


@dataclass(frozen=True)
class Workspace:
    """The folder in which commands keep graphs, embeddings, crops, reports and the MLflow store."""

    root: Path

    def folder(self, kind: str, key: str) -> Path:
        """Where a noun with this stage key lives."""
        return self.root / f"{kind}s" / key

    def finished(self, kind: str, key: str) -> Path | None:
        """The folder of a stage that was completed before with the same code, config and inputs."""
        folder = self.folder(kind, key)
        if not (folder / MANIFEST).is_file() and not _old(folder).exists():
            return None
        try:
            read_manifest(folder, kind=kind)
        except MedappsError:
            return None
        return folder

    def saved(self, kind: str) -> list[Path]:
        """The folders of a kind; hidden ones are unfinished or on their way out."""
        place = self.root / f"{kind}s"
        with disk_errors(place, "read"):
            found = sorted(place.iterdir()) if place.is_dir() else []
            return [p for p in found if not p.name.startswith(".") and (p / MANIFEST).is_file()]

    def newest(self, kind: str, **about: Any) -> Path | None:
        """The most recently written noun of a kind whose manifest says `about`."""
        best: tuple[str, Path] | None = None
        for folder in self.saved(kind):
            try:
                found = parse_manifest((folder / MANIFEST).read_text())
            except (OSError, ValueError):
                continue
            if all(found.about.get(key) == value for key, value in about.items()):
                best = max(best or ("", folder), (found.created, folder))
        return best[1] if best else None


def stage_key(verb: str, revision: int, config: object, parents: Mapping[str, str]) -> str:
    """Names a stage by its code version, resolved config and input digests.

    `revision` is raised by whoever changes what the verb computes.
    """
    return digest_of([__version__, verb, revision, config, dict(parents)])[:16]
