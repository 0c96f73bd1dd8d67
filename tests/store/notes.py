"""A small saved folder: two files that say the same."""

from __future__ import annotations

from pathlib import Path

from medapps.store import (
    Provenance,
    read_manifest,
    writing,
)


def write(folder: Path, text: str, *, force: bool = False) -> None:
    with writing(folder, kind="note", provenance=Provenance(force=force)) as draft:
        draft.path("a.txt").write_text(text)
        draft.path("b.txt").write_text(text)


def content(folder: Path) -> str:
    """What a whole folder says; its two files must agree."""
    read_manifest(folder, kind="note")
    first, second = ((folder / name).read_text() for name in ("a.txt", "b.txt"))
    assert first == second
    return first
