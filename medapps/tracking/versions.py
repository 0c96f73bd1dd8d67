"""What stands in the registry: versions of models, their aliases and where their files are.

The workspace's own store is read with SQLite alone, so that a server needs no MLflow for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from medapps.errors import MedappsError
from medapps.tracking.connection import connect_registry, is_local, store_errors
from medapps.tracking.sqlite import database, is_made, store_file


@dataclass(frozen=True)
class Version:
    """A version of a registered model."""

    name: str
    number: int
    place: str
    """The address of its files."""
    aliases: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)


def versions_of(workspace: Path, name: str) -> list[Version]:
    """All versions of a registered model, oldest first; none where nothing was ever registered."""
    if not is_local(workspace):
        return _asked(workspace, name)
    file = store_file(workspace)
    return _read(file, name) if is_made(file) else []


def _read(file: Path, name: str) -> list[Version]:
    with database(file) as db:
        rows = db.execute(
            "SELECT version, storage_location FROM model_versions "
            "WHERE name = ? AND current_stage <> 'Deleted_Internal' ORDER BY version",
            (name,),
        ).fetchall()
        aliases = db.execute(
            "SELECT version, alias FROM registered_model_aliases WHERE name = ?", (name,)
        ).fetchall()
        tags = db.execute(
            "SELECT version, key, value FROM model_version_tags WHERE name = ?", (name,)
        ).fetchall()
    return [
        Version(
            name,
            number,
            str(place),
            tuple(alias for at, alias in aliases if at == number),
            {key: value for at, key, value in tags if at == number},
        )
        for number, place in rows
    ]


def _asked(workspace: Path, name: str) -> list[Version]:
    with store_errors(workspace):
        client = connect_registry(workspace)
        found = client.search_model_versions(f"name = '{name}'")
        ordered = sorted(found, key=lambda version: int(version.version))
        return [
            Version(name, int(v.version), f"models:/{name}/{v.version}", tuple(v.aliases), v.tags)
            for v in ordered
        ]


def fetched(version: Version, folder: Path) -> Path:
    """The files of a version: where they are, or a copy in `folder` if they are elsewhere."""
    if version.place.startswith("file:"):
        place = Path(unquote(urlsplit(version.place).path))
    elif "://" not in version.place and not version.place.startswith("models:"):
        place = Path(version.place)
    else:
        import mlflow

        place = Path(mlflow.artifacts.download_artifacts(version.place, dst_path=str(folder)))
    if not place.is_dir():
        raise MedappsError(f"{version.name}, version {version.number}, has lost its files {place}.")
    return place
