"""The workspace: the folder in which commands keep what they make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medapps import __version__
from medapps.errors import MedappsError
from medapps.store.files import disk_errors
from medapps.store.manifest import MANIFEST, Manifest, digest_of, parse_manifest
from medapps.store.reading import read_manifest
from medapps.store.writing import old_folder


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
