"""What people see: results as tables, and how far a training is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from medapps.cli.common import Job

if TYPE_CHECKING:
    import polars as pl

    from medapps.train.session import Progress as Now


def facts(values: Mapping[str, Any]) -> Table:
    """Name and value, one line each; nested values are left to --json."""
    table = Table(Column(style="bold"), Column(), show_header=False, box=None, pad_edge=False)
    for name, value in values.items():
        if not isinstance(value, Mapping):
            table.add_row(name, cell(value))
    return table


def rows(frame: pl.DataFrame, title: str | None = None) -> Table:
    """A data frame, one line per row; numbers on the right."""
    sides = ("right" if kind.is_numeric() else "left" for kind in frame.dtypes)
    columns = (Column(n, justify=side) for n, side in zip(frame.columns, sides, strict=True))  # type: ignore[arg-type]
    table = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False)
    for row in frame.iter_rows():
        table.add_row(*(cell(value) for value in row))
    return table


def cell(value: object) -> str:
    """A value as short as it stays readable."""
    if isinstance(value, bool) or value is None:
        return "–" if value is None else str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(part) for part in value)
    return str(value)


@contextmanager
def progress_bar(
    job: Job, *more: ProgressColumn
) -> Iterator[Callable[[float, int, str, str], None]]:
    """A bar on standard error that is told steps done, steps in all, title and note.

    It disappears when the work ends, and is not there with -q.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        *more,
    )
    with Progress(*columns, console=job.console, transient=True, disable=job.quiet) as bar:
        line = bar.add_task("training", total=None, note="")

        def show(done: float, total: int, title: str, note: str) -> None:
            bar.update(line, completed=done, total=total, description=title, note=note)

        yield show


@contextmanager
def training_bar(job: Job) -> Iterator[Callable[[Now], None]]:
    """Draws a training: epoch, loss, triples per second and the time left."""
    with progress_bar(job) as show:

        def told(now: Now) -> None:
            title = f"{now.part} epoch {int(now.epoch)} of {now.epochs}".lstrip()
            left = f"{now.seconds_left:,.0f} s left" if now.seconds_left is not None else ""
            note = f"loss {now.loss:.4f}  {now.triples_per_second:,.0f} triples/s  {left}"
            show(now.epoch, now.epochs, title, note)

        yield told
