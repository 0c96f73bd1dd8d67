"""A comparison as files: csv, json, Markdown and plots."""

from __future__ import annotations

import json
from pathlib import Path

from medapps.comparison.compare import Comparison
from medapps.comparison.grid import markdown
from medapps.comparison.plots import figures
from medapps.store import disk_errors
from medapps.tracking import NO_RUN, Run


def write_comparison(comparison: Comparison, folder: Path, run: Run = NO_RUN) -> list[Path]:
    """Write everything into `folder`, and into the run as artefacts; returns the files."""
    folder = Path(folder)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        table = folder / "comparison.md"
        table.write_text(markdown(comparison))
        rows = folder / "comparison.csv"
        comparison.frame().write_csv(rows)
        plain = folder / "comparison.json"
        plain.write_text(
            json.dumps({"reference": comparison.reference, "rows": comparison.plain()}, indent=1)
        )
        files = [table, rows, plain]
        for name, figure in figures(comparison):
            figure.savefig(folder / name, dpi=130)
            files.append(folder / name)
    for file in files:
        run.artifact(file, "comparison")
    return files
