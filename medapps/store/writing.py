"""Write saved nouns: a folder appears whole or not at all.

`writing(folder, ...)` fills a hidden sibling and renames it into place, so that a crash leaves the
old folder or the new one; only a folder of the same kind that medapps wrote is ever replaced.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from medapps.arrays import Blocks, Hole, write_arrays
from medapps.errors import MedappsError
from medapps.store.files import disk_errors, lock, sync, write_text
from medapps.store.manifest import (
    FORMAT,
    MANIFEST,
    Manifest,
    file_digest,
    manifest_text,
    parse_manifest,
)

if TYPE_CHECKING:
    import numpy as np
    import polars as pl


@dataclass(frozen=True)
class Provenance:
    """What a noun was made from, and what of an earlier one its folder may replace."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """The settings."""
    parents: Mapping[str, str] = field(default_factory=dict)
    """Name to digest of what it was made from."""
    force: bool = False
    """Replace a noun of the same kind."""
    ours: bool = False
    """The folder is the workspace's own: replace a damaged noun too."""

    def of(self, **parents: str) -> Provenance:
        """The same with more parents; one that is stated already stays."""
        return replace(self, parents=parents | dict(self.parents))


NEW = Provenance()
REPLACE = Provenance(force=True)


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
    folder: Path, *, kind: str, provenance: Provenance = NEW, format_version: int = FORMAT
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
            refuse_folder(folder, kind, force=provenance.force, ours=provenance.ours)
            part = folder.parent / f".{folder.name}.part"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            try:
                draft = Draft(part)
                yield draft
                manifest = Manifest(
                    kind=kind,
                    format_version=format_version,
                    about=draft.about,
                    config=dict(provenance.config),
                    parents=dict(provenance.parents),
                    metrics=draft.metrics,
                    created=datetime.now(UTC).isoformat(),
                )
                _seal(draft, manifest, began)
                _replace(part, folder)
            finally:
                shutil.rmtree(part, ignore_errors=True)


def refuse_folder(folder: Path, kind: str, *, force: bool = False, ours: bool = False) -> None:
    """Let only an empty folder, or a noun of this kind with nothing added, be replaced.

    A folder of `ours` may be damaged.
    """

    def refuse(why: str) -> MedappsError:
        return MedappsError(
            f"{folder} {why}, so it is not replaced.", fix="Name another folder, or move it away."
        )

    if not os.path.lexists(folder):
        return
    if not (force or ours):
        raise MedappsError(f"{folder} exists already.", fix="Use --force to replace it.")
    if folder.is_symlink() or not folder.is_dir():
        raise refuse("is not a folder")
    inside = {path.name for path in folder.iterdir()}
    if not inside:
        return
    try:
        found = parse_manifest((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        if ours:
            return
        raise refuse("is not a medapps folder") from None
    if found.kind != kind:
        raise refuse(f"holds a {found.kind}, not a {kind}")
    if strange := sorted(inside - {MANIFEST, *found.files}):
        raise refuse(f"also holds {strange[0]}, which medapps did not write")


def _seal(draft: Draft, manifest: Manifest, began: float) -> None:
    """Write the manifest with all files of the draft, and wait until they are on the disk."""
    files: dict[str, dict[str, Any]] = {
        path.name: {
            "bytes": path.stat().st_size,
            "sha256": draft.digests.get(path.name) or file_digest(path),
        }
        for path in sorted(draft.folder.iterdir())
    }
    size = sum(entry["bytes"] for entry in files.values())
    manifest = replace(manifest, files=files, bytes=size, seconds=round(perf_counter() - began, 6))
    write_text(draft.folder / MANIFEST, manifest_text(manifest))
    for path in draft.folder.iterdir():
        sync(path)
    sync(draft.folder)


def _replace(part: Path, folder: Path) -> None:
    old = old_folder(folder)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)  # left by a crash after both renames
        folder.replace(old)
    part.replace(folder)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def old_folder(folder: Path) -> Path:
    """Where a noun is between the two renames of its replacement."""
    return folder.parent / f".{folder.name}.old"


def _lock_file(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.lock"


def _put_back(folder: Path) -> None:
    """Undo a replacement that was cut off between its two renames; the lock is held."""
    if old_folder(folder).exists() and not folder.exists():
        old_folder(folder).replace(folder)


def recover(folder: Path) -> None:
    """The same for a reader, after any writer that is between the two has gone on."""
    if old_folder(folder).exists() and not folder.exists():
        with lock(_lock_file(folder), "", wait=True):
            _put_back(folder)
