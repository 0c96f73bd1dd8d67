"""A comparison as files: csv, json, Markdown and plots, also as a saved noun."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medapps.comparison.grid import markdown
from medapps.comparison.plots import figures
from medapps.comparison.table import Comparison, Row
from medapps.store import (
    Provenance,
    disk_errors,
    file_digest,
    read_manifest,
    refuse_output,
    replacing,
    usable,
    writing,
)

KIND = "comparison"


def write_files(comparison: Comparison, folder: Path) -> None:
    """The table as comparison.md, .csv and .json, and every figure as PNG."""
    (folder / "comparison.md").write_text(markdown(comparison))
    comparison.frame().write_csv(folder / "comparison.csv")
    values = {"reference": comparison.reference, "rows": comparison.plain()}
    (folder / "comparison.json").write_text(json.dumps(values, indent=1))
    for name, figure in figures(comparison):
        figure.savefig(folder / name, dpi=130)


def save_comparison(
    comparison: Comparison,
    folder: Path,
    provenance: Provenance,
    about: Mapping[str, Any],
) -> None:
    """Save a comparison with the reports that it is made of."""
    with writing(folder, kind=KIND, provenance=provenance) as draft:
        write_files(comparison, draft.folder)
        draft.about = dict(about)


@usable(KIND)
def load_comparison(folder: Path) -> Comparison:
    """Read a saved comparison back."""
    read_manifest(folder, kind=KIND)
    values = json.loads((Path(folder) / "comparison.json").read_text())
    return Comparison(tuple(Row(**row) for row in values["rows"]), values["reference"])


def copy_files(folder: Path, out: Path, *, force: bool = False) -> list[Path]:
    """Copy the files of a saved comparison to where they are wanted."""
    with disk_errors(out):
        Path(out).mkdir(parents=True, exist_ok=True)
    files = {name: Path(out) / name for name in read_manifest(folder, kind=KIND).files}
    changed = {
        name: target
        for name, target in files.items()
        if not (target.is_file() and file_digest(target) == file_digest(Path(folder) / name))
    }
    for target in changed.values():  # all or none
        refuse_output(target, force=force)
    for name, target in changed.items():
        with replacing(target, force=force) as part:
            shutil.copyfile(Path(folder) / name, part)
    return list(files.values())
