"""A comparison as files: csv, json, Markdown and plots, also as a saved noun."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medapps.comparison.grid import grids, markdown, metric_title
from medapps.comparison.table import Comparison, Row
from medapps.methods import CONTROLS
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure


KIND = "comparison"


def write_files(comparison: Comparison, folder: Path) -> None:
    """The table as comparison.md, .csv and .json, and every figure as PNG."""
    (folder / "comparison.md").write_text(markdown(comparison))
    comparison.frame().write_csv(folder / "comparison.csv")
    values = {
        "reference": comparison.reference,
        "notes": comparison.notes,
        "rows": comparison.plain(),
    }
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
    rows = tuple(Row(**row) for row in values["rows"])
    return Comparison(rows, values["reference"], tuple(values["notes"]))


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


_AXES = {
    "dim": ("retention", "dim"),
    "train_seconds": ("seconds", "seconds of training, teachers included"),
    "bytes": ("bytes", "bytes on the device"),
}
"""What quality is drawn over: the field of a row, the name of the file, the title of the axis."""
_MARKERS = "osD^vP*Xph<>"


def figures(comparison: Comparison) -> Iterator[tuple[str, Figure]]:
    """(file name, figure): quality over dims, training time and bytes, for every task."""
    for grid in grids(comparison):
        place, metric = grid.place, grid.metrics[0]
        stem = "_".join(filter(None, (place.data, place.task, place.target)))
        rows = [line.rows[metric] for line in grid.lines if metric in line.rows]
        for field, (name, _) in _AXES.items():
            if any(getattr(row, field) for row in rows):
                yield f"{stem}_{name}.png", _figure(grid.title, rows, field, comparison.reference)


def _figure(title: str, rows: list[Row], field: str, reference: str) -> Figure:
    """One series per method, drawn without pyplot, so nothing stays open.

    Over dims quality is a share of the reference's (else the best) at its largest dim; a method
    that costs nothing is a level to compare with.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(title=title, xscale="log", xlabel=_AXES[field][1])
    ylabel, scale, over_dims = metric_title(rows[0].metric), 1.0, field == "dim"
    if over_dims:
        whole = [row for row in rows if row.method == reference] or rows
        top = max(whole, key=lambda row: (row.dim, row.value))
        scale = 100 / top.value if top.value else 1.0
        ylabel += f", % of {top.method} at {top.dim}"
    places = sorted({value for row in rows if (value := getattr(row, field))})
    axes.set_xlim(places[0] / 1.5, places[-1] * 1.5)  # before levels: one cost alone is no range
    methods = sorted({row.method for row in rows}, key=lambda name: (name in CONTROLS, name))
    for i, method in enumerate(methods):
        series = sorted((row for row in rows if row.method == method), key=lambda row: row.dim)
        look: dict[str, Any] = {"label": method, "color": f"C{i % 10}"}
        known = [row for row in series if getattr(row, field)]
        if not known:
            for row in series:
                axes.axhline(scale * row.value, color=look["color"], ls=":", lw=1)
            axes.plot([], [], ls=":", **look)
            continue
        line = (":" if method in CONTROLS else "-") if over_dims else ""
        # over dims each goes a step aside, so that intervals do not cover each other
        aside = 10 ** (0.012 * (i - len(methods) / 2)) if over_dims else 1.0
        x = [getattr(row, field) * aside for row in known]
        y = np.array([scale * row.value for row in known])
        ends = [(row.value, row.value) if row.low is None else (row.low, row.high) for row in known]
        low, high = scale * np.array(ends, float).T
        bars = np.maximum([y - low, high - y], 0)
        marker = _MARKERS[i % len(_MARKERS)]
        axes.errorbar(x, y, bars, marker=marker, ls=line, capsize=3, **look)
        for place, value, row in zip(x, y, known, strict=True) if not over_dims else ():
            axes.annotate(str(row.dim), (place, value), (4, 4), textcoords="offset points")
    if over_dims:
        axes.set_xticks(places, [str(place) for place in places])
        axes.minorticks_off()
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    return figure
