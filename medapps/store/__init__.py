"""Saved nouns: a folder with a manifest, written whole or not at all, checked when read.

The manifest names every file with its size and SHA-256. `replacing(out)` writes a single file that
a user asks for in the same way.
"""

from __future__ import annotations

from medapps.store.files import (
    check_table_name,
    disk_errors,
    lock,
    refuse_output,
    replacing,
    write_table,
    write_text,
)
from medapps.store.manifest import MANIFEST, Manifest, digest_of, file_digest
from medapps.store.reading import VERIFY_BELOW, Workspace, read_manifest, stage_key, usable
from medapps.store.writing import NEW, REPLACE, Draft, Provenance, refuse_folder, writing

__all__ = [
    "MANIFEST",
    "NEW",
    "REPLACE",
    "VERIFY_BELOW",
    "Draft",
    "Manifest",
    "Provenance",
    "Workspace",
    "check_table_name",
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
    "write_table",
    "write_text",
    "writing",
]
