"""The manifest of a saved folder: what it is, what it came from, what every file in it must be.

`digest` covers the content (kind, format version, about, files), so that equal nouns have equal
digests whenever they are made; `seal` covers all that the manifest states. NumPy and polars are all
that a device has, so the types are checked here by hand.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from medapps import __version__

MANIFEST = "manifest.json"
FORMAT = 3
"""Raised when manifests or files are laid out in another way than before."""
_LONGEST_NAME = 255
_SHA256 = re.compile(r"[0-9a-f]{64}")


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
    seal: str = ""


def _types(hint: Any) -> tuple[type, ...]:
    """The types that a value may have in JSON."""
    kind = get_origin(hint) or hint
    return (int, float) if kind is float else (kind,)


_HINTS = get_type_hints(Manifest)
_TYPES = {name: _types(hint) for name, hint in _HINTS.items()}
_WITHIN = {
    name: _types(inner)
    for name, hint in _HINTS.items()
    if (inner := next(iter(get_args(hint)[1:]), Any)) is not Any
}
"""What the values of a mapping may be, where it matters."""


def parse_manifest(text: str) -> Manifest:
    """The manifest that a text states; ValueError where it is none."""
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError("it is no object")
    version = values.get("format_version")
    if type(version) is int and version != FORMAT:  # may say what is not known here
        values = {name: value for name, value in values.items() if name in _TYPES}
    if strange := sorted(set(values) - set(_TYPES)):
        raise ValueError(f"it has an unknown entry {strange[0][:40]!r}")
    for name in ("kind", "format_version", "about", "files", "created", "digest"):
        if name not in values:
            raise ValueError(f"it lacks {name!r}")
    for name, value in values.items():
        if type(value) not in _TYPES[name]:
            raise ValueError(f"{name!r} is of the wrong type")
        for key, inner in value.items() if name in _WITHIN else ():
            if type(inner) not in _WITHIN[name]:
                raise ValueError(f"{key[:40]!r} in {name!r} is of the wrong type")
    for name, entry in values["files"].items():
        _check_file(name, entry)
    return Manifest(**values)


def _check_file(name: str, entry: Mapping[str, Any]) -> None:
    if len(os.fsencode(name)) > _LONGEST_NAME:
        raise ValueError(f"the file name {name[:40]!r}... is too long")
    if Path(name).name != name or name in ("..", ".", MANIFEST) or "\0" in name:
        raise ValueError(f"it names a file outside its folder: {name!r}")
    if set(entry) != {"bytes", "sha256"} or type(entry["bytes"]) is not int:
        raise ValueError(f"size and digest of {name!r} are not stated")
    if type(entry["sha256"]) is not str or not _SHA256.fullmatch(entry["sha256"]):
        raise ValueError(f"the digest of {name!r} is none")


def signed(manifest: Manifest) -> Manifest:
    """The manifest with its digest and its seal."""
    manifest = replace(manifest, digest=content_digest(manifest))
    return replace(manifest, seal=seal_of(manifest))


def content_digest(manifest: Manifest) -> str:
    """Names what a noun holds, whenever and from what it was made."""
    kept = ("kind", "format_version", "about", "files")
    return digest_of({name: getattr(manifest, name) for name in kept})


def seal_of(manifest: Manifest) -> str:
    """Covers everything that a manifest states."""
    return digest_of({f.name: getattr(manifest, f.name) for f in fields(manifest)} | {"seal": ""})


def manifest_text(manifest: Manifest) -> str:
    """The manifest as a file, signed as it will be read."""
    return json.dumps(asdict(signed(parse_manifest(json.dumps(asdict(manifest))))), indent=1)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(value: object) -> str:
    """SHA-256 of a JSON-able value, independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()
