"""The models of a server: taken from the registry by alias, and replaced when an alias moves.

A request holds the model that it began with, so that a replacement drops nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from medapps.errors import MedappsError
from medapps.serve.models import Served, load_model
from medapps.serve.register import NAMES
from medapps.store import MANIFEST
from medapps.store.manifest import parse_manifest
from medapps.tracking.versions import Version, fetched, versions_of

EVERY = 2.0
"""Seconds between two looks at the registry."""
AGAIN = 60.0
"""Seconds after which a version that could not be opened is tried again."""


@dataclass(frozen=True)
class Loaded:
    """A model in memory, and which version of the registry it is."""

    kind: str
    alias: str
    version: Version
    model: Served

    @property
    def facts(self) -> dict[str, Any]:
        """What an answer says of the model that gave it."""
        return {"name": self.version.name, "alias": self.alias, "version": self.version.number}


class Models:
    """What is served now, by kind."""

    def __init__(
        self, workspace: Path, aliases: dict[str, str | None], say: Callable[[str], None]
    ) -> None:
        self.workspace = workspace
        self.aliases = aliases
        """Kind to alias; None takes that of the newest version, and keeps to it."""
        self.loads = self.failures = 0
        self._say = say
        self._now: dict[str, Loaded] = {}
        self._failed: dict[str, tuple[int, float]] = {}
        self._ended = threading.Event()

    def get(self, kind: str) -> Loaded | None:
        """The model of a kind, if there is one."""
        return self._now.get(kind)

    def follow(self) -> None:
        """Look at the registry until `end`, in a thread of its own."""
        threading.Thread(target=self._look, name="registry", daemon=True).start()

    def end(self) -> None:
        """Stop following."""
        self._ended.set()

    def _look(self) -> None:
        while not self._ended.wait(EVERY):
            self.check()

    def check(self) -> None:
        """Take over every version that an alias has moved to."""
        for kind in self.aliases:
            try:
                found = self._wanted(kind)
            except MedappsError as error:  # a store that is silent now may answer later
                self._fail(kind, -1, error)
                continue
            now = self._now.get(kind)
            if found is None or (now is not None and now.version.number == found.number):
                continue
            number, when = self._failed.get(kind, (-1, 0.0))
            if number == found.number and time.monotonic() - when < AGAIN:
                continue
            try:
                self._now[kind] = self._load(kind, found)
            except Exception as error:  # whatever is wrong with it, the old one goes on
                self._fail(kind, found.number, error)
                continue
            self.loads += 1
            self._failed.pop(kind, None)
            self._say(f"{found.name}@{self.aliases[kind]}: version {found.number}")

    def _fail(self, kind: str, number: int, error: Exception) -> None:
        if self._failed.get(kind, (None, 0))[0] != number:
            self._say(f"Warning: {NAMES[kind]} stays as it is: {error}")
        self.failures += 1
        self._failed[kind] = number, time.monotonic()

    def _wanted(self, kind: str) -> Version | None:
        """The version that the alias of a kind leads to."""
        versions = versions_of(self.workspace, NAMES[kind])
        if self.aliases[kind] is None:
            self.aliases[kind] = next((v.aliases[0] for v in reversed(versions) if v.aliases), None)
        return next((v for v in versions if self.aliases[kind] in v.aliases), None)

    def _load(self, kind: str, version: Version) -> Loaded:
        with TemporaryDirectory(prefix="medapps-") as copies:  # mapped files outlive their names
            place = fetched(version, Path(copies)) / "artifacts"
            folders = {_kind(folder): folder for folder in place.iterdir()}
            if kind not in folders:
                raise MedappsError(f"{version.name}, version {version.number}, holds no {kind}.")
            model = load_model(folders)
            model.table(model.examples, 1)  # compiled loops are read before anybody waits for them
        alias = self.aliases[kind]
        assert alias is not None
        return Loaded(kind, alias, version, model)


def _kind(folder: Path) -> str:
    return parse_manifest((folder / MANIFEST).read_text()).kind
