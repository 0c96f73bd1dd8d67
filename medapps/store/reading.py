"""Read saved nouns: the manifest first, then every file that it lists is compared with it.

The workspace is the folder in which commands keep what they make, and find it again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from medapps import __version__
from medapps.errors import MedappsError
from medapps.store.files import disk_errors, write_text
from medapps.store.manifest import (
    FORMAT,
    MANIFEST,
    Manifest,
    content_digest,
    digest_of,
    file_digest,
    parse_manifest,
    seal_of,
)
from medapps.store.writing import old_folder, recover

VERIFY_BELOW = 2**30
"""Files up to this many bytes are hashed on every load; larger ones on the first."""
_MEANT = {".safetensors", ".parquet", ".npz", ".json", ".onnx"}
"""Files that a saved folder is read from; none may stand there unlisted."""


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
            recover(folder)
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
        if not (folder / MANIFEST).is_file() and not old_folder(folder).exists():
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

    def manifests(self, kind: str) -> Iterator[tuple[Path, Manifest]]:
        """The folders of a kind with what they say of themselves; damaged ones are left out."""
        for folder in self.saved(kind):
            with suppress(OSError, ValueError):
                yield folder, parse_manifest((folder / MANIFEST).read_text())

    def newest(self, kind: str, **about: Any) -> Path | None:
        """The most recently written noun of a kind whose manifest says `about`."""
        found = [
            (manifest.created, folder)
            for folder, manifest in self.manifests(kind)
            if all(manifest.about.get(key) == value for key, value in about.items())
        ]
        return max(found)[1] if found else None


def stage_key(verb: str, revision: int, config: object, parents: Mapping[str, str]) -> str:
    """Names a stage by its code version, resolved config and input digests.

    `revision` is raised by whoever changes what the verb computes.
    """
    return digest_of([__version__, verb, revision, config, dict(parents)])[:16]
