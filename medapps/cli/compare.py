"""`medapps compare`: the results of this workspace side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from medapps.cli.common import Job, Result, command
from medapps.cli.options import OutFolder

if TYPE_CHECKING:
    from rich.table import Table

    from medapps.comparison import Comparison
    from medapps.comparison.grid import Grid, Line
    from medapps.comparison.table import Row


@command("compare", example="medapps compare --out comparison")
def compare(
    job: Job,
    reports: Annotated[
        list[Path] | None, typer.Argument(help="Report folders; by default all of the workspace.")
    ] = None,
    study: Annotated[str | None, typer.Option(help="Only the reports of this study.")] = None,
    data: Annotated[str | None, typer.Option(help="Only this data set.")] = None,
    task: Annotated[
        str | None, typer.Option(help="Only one task, such as label, rank or text-sst2.")
    ] = None,
    reference: Annotated[
        str, typer.Option(help="Method that the others are held against.")
    ] = "med",
    out: OutFolder = None,
) -> Result:
    """Compare methods by tier and task: quality with interval, verdict, seconds and bytes."""
    from medapps.comparison.gather import saved_reports
    from medapps.comparison.write import copy_files
    from medapps.stages import compare_stage

    tiers = {tier.dim: name for name, tier in job.settings().crop.tiers.items()}
    found = saved_reports(job.workspace, reports or [], study=study, data=data, task=task)
    table, folder = compare_stage(
        job.runner, found, reference=reference, tiers=tiers, seed=job.seed
    )
    where = folder
    if out is not None:
        copy_files(folder, out, force=job.force)
        where = out
    values = {
        "artifact": where,
        "reference": reference,
        "notes": list(table.notes),
        "rows": table.plain(),
    }
    return Result(values, [*tables(table), f"Table and plots: {where}"])


def tables(comparison: Comparison) -> list[Table | str]:
    """Each task as a table for the terminal, and where methods had not the same to learn from."""
    from medapps.comparison.grid import grids

    found = [_table(grid, comparison.reference) for grid in grids(comparison)]
    return [*found, *(f"Note: {note}" for note in comparison.notes)]


def _table(grid: Grid, reference: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from medapps.comparison.grid import metric_title, seconds, size, verdict

    metrics = grid.metrics[: 4 if Console().width >= 110 else 2]
    repeated = {row.seeds for line in grid.lines for row in line.rows.values()}
    table = Table(
        title=grid.title,
        title_justify="left",
        caption=_caption(repeated, reference),
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for title in ("method", *map(metric_title, metrics)):
        table.add_column(title, no_wrap=True)
    table.add_column(f"vs {reference}")
    for title in ("train s", "size"):
        table.add_column(title, justify="right", no_wrap=True)
    before = None
    for line in grid.lines:
        if line.dim != before:
            table.add_section()
            table.add_row(Text(tier_title(line), "bold"))
        first = line.first
        table.add_row(
            line.method,
            *(_value(line.rows.get(m), whole=m == metrics[0]) for m in metrics),
            _short(verdict(first, reference)),
            seconds(first.train_seconds),
            size(first.bytes),
        )
        before = line.dim
    return table


def _value(row: Row | None, *, whole: bool) -> Text:
    """The first metric with its interval, the others without; the best one marked."""
    from medapps.comparison.grid import arrow, number

    text = number(row) if whole or row is None else f"{row.value:.3f}{arrow(row)}"
    return Text(text, "bold green" if row and row.best else "")


def tier_title(line: Line) -> str:
    """phone 10; a size without a name is its number."""
    return f"{line.tier} {line.dim}" if line.tier != str(line.dim) else line.tier


def _short(verdict: str) -> Text:
    """A verdict in few letters; the caption says what they mean."""
    words = {"better": ("better", "green"), "worse": ("worse", "red"), "–": ("–", "")}
    return Text(*words.get(verdict, ("·" if verdict == "(reference)" else "=", "dim")))


def _caption(seeds: set[int], reference: str) -> str:
    from medapps.comparison.grid import ONE_RUN

    caption = (
        f"[ ] 95 % interval   = no difference from {reference} shown, ↑ better, ↓ worse   "
        f"runs per value: {', '.join(map(str, sorted(seeds)))}"
    )
    return caption if min(seeds) > 1 else f"{caption}\n{ONE_RUN}"
