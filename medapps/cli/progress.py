"""Progress on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from medapps.cli.common import Job

if TYPE_CHECKING:
    from medapps.train.session import Progress as TrainProgress


class TrainingBar:
    """Draws a training: epoch, loss, triples per second and the time left."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("training", total=None, note="")

    def __call__(self, now: TrainProgress) -> None:
        left = f"{now.seconds_left:,.0f} s left" if now.seconds_left is not None else ""
        note = f"loss {now.loss:.4f}  {now.triples_per_second:,.0f} triples/s  {left}"
        self._bar.update(
            self._task,
            total=now.epochs,
            completed=now.epoch,
            description=f"{now.part} epoch {int(now.epoch)} of {now.epochs}".lstrip(),
            note=note,
        )


@contextmanager
def training_bar(job: Job) -> Iterator[TrainingBar]:
    """A bar that disappears when the training ends; silent with -q."""
    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
    ]
    with Progress(*columns, console=job.console, transient=True, disable=job.quiet) as bar:
        yield TrainingBar(bar)
