"""A comparison as files: csv, json, Markdown and plots, also as a saved noun."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medapps.comparison.grid import Grid, grids, markdown, metric_title
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
    from matplotlib.axes import Axes
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


COSTS = {"seconds": "seconds of training, teachers included", "bytes": "bytes on the device"}
_MARKERS = "osD^vP*Xph<>"


def figures(comparison: Comparison) -> Iterator[tuple[str, Figure]]:
    """(file name, figure): three for every task on every data set."""
    for grid in grids(comparison):
        stem = "_".join(filter(None, (grid.place.data, grid.place.task, grid.place.target)))
        rows = [line.rows[grid.metrics[0]] for line in grid.lines if grid.metrics[0] in line.rows]
        if any(row.dim for row in rows):
            draw = _retention(rows, comparison.reference)
            yield f"{stem}_retention.png", _figure(grid, rows, draw)
        for name, title in COSTS.items():
            if any(_cost(row, name) for row in rows):
                yield f"{stem}_{name}.png", _figure(grid, rows, _scatter(name, title, rows))


@dataclass(frozen=True)
class Look:
    """How a method is drawn."""

    method: str
    colour: str
    marker: str
    aside: float
    """Step to the side, as a power of ten, so that intervals do not cover each other."""

    @property
    def line(self) -> str:
        return ":" if self.method in CONTROLS else "-"


Draw = Callable[["Axes", Look, list[Row]], None]


def _figure(grid: Grid, rows: list[Row], draw: Draw) -> Figure:
    """Axes with one series per method; drawn without pyplot, so nothing stays open."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(grid.title)
    axes.set_xscale("log")
    axes.set_ylabel(metric_title(grid.metrics[0]))
    methods = sorted({row.method for row in rows}, key=lambda name: (name in CONTROLS, name))
    for i, method in enumerate(methods):
        series = sorted((row for row in rows if row.method == method), key=lambda row: row.dim)
        look = Look(
            method, f"C{i % 10}", _MARKERS[i % len(_MARKERS)], 0.012 * (i - len(methods) / 2)
        )
        draw(axes, look, series)
    axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    return figure


def _bars(row: Row) -> tuple[float, float]:
    """How far the interval reaches below and above the value."""
    low = row.value if row.low is None else row.low
    high = row.value if row.high is None else row.high
    return max(row.value - low, 0.0), max(high - row.value, 0.0)


def _retention(rows: list[Row], reference: str) -> Draw:
    """Quality at each dim as a share of the reference's (else the best) at its largest dim."""
    whole = [row for row in rows if row.method == reference] or rows
    top = max(whole, key=lambda row: (row.dim, row.value))
    scale = 100 / top.value if top.value else 1.0

    def draw(axes: Axes, look: Look, series: list[Row]) -> None:
        bars = [[scale * _bars(row)[side] for row in series] for side in (0, 1)]
        dims = [row.dim * 10**look.aside for row in series]
        values = [scale * row.value for row in series]
        axes.errorbar(
            dims,
            values,
            bars,
            label=look.method,
            color=look.colour,
            marker=look.marker,
            ls=look.line,
            capsize=3,
        )
        axes.set_xlabel("dim")
        axes.set_ylabel(f"{metric_title(top.metric)}, % of {top.method} at {top.dim}")
        axes.set_xticks(sorted({row.dim for row in rows}))
        axes.set_xticklabels([str(dim) for dim in sorted({row.dim for row in rows})])
        axes.minorticks_off()

    return draw


def _cost(row: Row, name: str) -> float | None:
    return row.train_seconds if name == "seconds" else row.bytes


def _scatter(name: str, title: str, rows: list[Row]) -> Draw:
    """Quality against a cost; controls, which cost nothing, are levels to compare with."""
    all_costs = [cost for row in rows if (cost := _cost(row, name))]
    ends = min(all_costs) / 1.5, max(all_costs) * 1.5  # never singular, even for a single cost

    def draw(axes: Axes, look: Look, series: list[Row]) -> None:
        axes.set_xlim(ends)
        known = [row for row in series if _cost(row, name)]
        if not known:
            for row in series:
                axes.axhline(row.value, color=look.colour, ls=":", lw=1)
            axes.plot([], [], color=look.colour, ls=":", label=look.method)
            return
        bars = [[_bars(row)[side] for row in known] for side in (0, 1)]
        costs = [_cost(row, name) or 0.0 for row in known]
        values = [row.value for row in known]
        axes.errorbar(
            costs,
            values,
            bars,
            label=look.method,
            color=look.colour,
            marker=look.marker,
            ls="",
            capsize=3,
        )
        for cost, row in zip(costs, known, strict=True):
            axes.annotate(str(row.dim), (cost, row.value), (4, 4), textcoords="offset points")
        axes.set_xlabel(title)

    return draw
