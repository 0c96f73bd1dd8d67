"""Saved nouns: a folder with a manifest, written whole or not at all, checked when read.

`writing(folder, ...)` fills a hidden sibling and renames it into place, so that a crash leaves the
old folder or the new one. The manifest names every file with its size and SHA-256; `read_manifest`
compares them and refuses other kinds, newer format versions and names that lead out of the folder.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import IO, TYPE_CHECKING, Any

from medapps import __version__
from medapps.arrays import Blocks, Hole, write_arrays
from medapps.errors import MedappsError

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

MANIFEST = "manifest.json"
VERIFY_BELOW = 2**30
"""Files up to this many bytes are hashed on every load; larger ones are compared by size only."""
PATIENCE = 0.5
"""Seconds after which a lock is held by another writer, not by a reader."""


@dataclass(frozen=True)
class Manifest:
    """What a saved folder is, where it came from, and what every file in it must be."""

    kind: str
    format_version: int
    about: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0
    bytes: int = 0
    created: str = ""
    medapps_version: str = __version__
    digest: str = ""


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
    format_version: int = 1,
    config: Mapping[str, Any] | None = None,
    parents: Mapping[str, str] | None = None,
    force: bool = False,
) -> Iterator[Draft]:
    """Write a noun into `folder`: everything in the block, or nothing."""
    began = perf_counter()
    folder = Path(folder)
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with lock(_lock_file(folder), f"Another command is writing {folder}."):
            _put_back(folder)
            if folder.exists() and not force:
                raise MedappsError(f"{folder} exists already.", fix="Use --force to replace it.")
            if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
                raise MedappsError(f"{folder} is not a medapps folder, so it is not replaced.")
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
        digest=_content_digest(kind, format_version, draft.about, files),
    )
    write_text(draft.folder / MANIFEST, json.dumps(asdict(manifest), indent=1))
    for path in draft.folder.iterdir():
        _sync(path)
    _sync(draft.folder)


def _content_digest(kind: str, version: int, about: Mapping[str, Any], files: object) -> str:
    return digest_of({"kind": kind, "format_version": version, "about": about, "files": files})


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
    folder: Path, *, kind: str, format_version: int = 1, verify_below: int = VERIFY_BELOW
) -> Manifest:
    """The manifest of a saved noun, after its files have been compared with it."""
    folder = Path(folder)
    path = folder / MANIFEST
    for _ in range(3):  # a writer may be between its renames, even twice
        if path.is_file():
            break
        _recover(folder)
    else:
        raise MedappsError(f"{folder} holds no {kind}: it has no {MANIFEST}.")
    again = f"Make the {kind} again with --force."
    try:
        manifest = Manifest(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise MedappsError(f"{path} is damaged: {error}.", fix=again) from error
    if manifest.kind != kind:
        raise MedappsError(f"{folder} holds a {manifest.kind}, not a {kind}.")
    if manifest.format_version != format_version:
        raise MedappsError(
            f"{folder} has format version {manifest.format_version}; this medapps "
            f"({__version__}) reads version {format_version}.",
            fix="Upgrade medapps." if manifest.format_version > format_version else again,
        )
    expected = _content_digest(kind, format_version, manifest.about, manifest.files)
    if manifest.digest != expected:
        raise MedappsError(f"{path} was altered: its digest does not fit its content.", fix=again)
    for name, entry in manifest.files.items():
        if Path(name).name != name or name in ("..", "."):
            raise MedappsError(f"{path} names a file outside its folder: {name!r}.")
        _verify(folder / name, entry, verify_below, again)
    return manifest


def _verify(path: Path, entry: Mapping[str, Any], verify_below: int, again: str) -> None:
    if not path.is_file():
        raise MedappsError(f"{path} is missing.", fix=again)
    size = path.stat().st_size
    if size != entry["bytes"]:
        raise MedappsError(
            f"{path} has {size:,} bytes where {entry['bytes']:,} were written.", fix=again
        )
    if size <= verify_below and file_digest(path) != entry["sha256"]:
        raise MedappsError(f"{path} was altered since it was written.", fix=again)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(value: object) -> str:
    """SHA-256 of a JSON-able value, independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


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
    errno.EACCES: "you may not write there",
    errno.EPERM: "you may not write there",
    errno.ENOTDIR: "part of the path is a file",
}


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full, read-only or forbidden disk into a sentence."""
    try:
        yield
    except MedappsError:
        raise
    except Exception as error:
        problem = _DISK_PROBLEMS.get(_os_error(error))
        if problem is None:
            raise
        raise MedappsError(
            f"Cannot write {path}: {problem}. Nothing half-written was left.",
            fix="Free some space or choose another place with --workspace.",
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

    def newest(self, kind: str, **about: Any) -> Path | None:
        """The most recently written noun of a kind whose manifest says `about`."""
        best: tuple[str, Path] | None = None
        for path in (self.root / f"{kind}s").glob(f"*/{MANIFEST}"):
            try:
                found = json.loads(path.read_text())
            except ValueError:
                continue
            if all(found["about"].get(key) == value for key, value in about.items()):
                best = max(best or ("", path), (found["created"], path.parent))
        return best[1] if best else None


def stage_key(verb: str, revision: int, config: object, parents: Mapping[str, str]) -> str:
    """Names a stage by its code version, resolved config and input digests.

    `revision` is raised by whoever changes what the verb computes.
    """
    return digest_of([__version__, verb, revision, config, dict(parents)])[:16]
