"""Options that several commands have, and the table that a task writes for more users."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medapps.cli.common import Job, Setting
from medapps.errors import MedappsError

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

Dim = Annotated[int, typer.Option("--dim", help="Size of the vectors.")]
Data = Annotated[Path | None, typer.Option(help="A dataset folder; else the newest.")]
Embedding = Annotated[Path | None, typer.Option(help="An embedding's folder; else the newest.")]
Method = Annotated[str, typer.Option(help="med, or a baseline made before.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where it was cut off.")]
Seeds = Annotated[int, typer.Option(min=1, max=1000, help="How many networks are trained.")]
Out = Annotated[
    Path | None, typer.Option(help="Where the result for them goes: .parquet, .csv or .tsv.")
]
OutFolder = Annotated[Path | None, typer.Option(help="Folder for Markdown, csv, json and plots.")]
EPOCHS = Setting("train.epochs", "Epochs of the training.", int)


@dataclass(frozen=True)
class Output:
    """A file of users, and the table that is asked for them."""

    users: Path
    out: Path
    force: bool

    def ids(self, kind: type[pl.DataType]) -> pl.Series:
        """The users, in the type of the ids among which they are looked up."""
        from medapps.crop.idlist import read_ids

        return read_ids(self.users, kind).alias("user")

    def unknown(self, users: pl.Series, known: np.ndarray) -> int:
        """How many of the users are not known; refuses a file of which nobody is."""
        from medapps.crop.idlist import count_unknown

        return count_unknown(users, known, self.users)

    def write(self, table: pl.DataFrame) -> None:
        """Write the table."""
        from medapps.store import write_table

        write_table(table, self.out, force=self.force)


def check_output(
    job: Job, option: str, users: Path | None, out: Path | None, inputs: tuple[Path | None, ...]
) -> Output | None:
    """Where a table for more users goes, if one is asked for; refused before the work begins."""
    from medapps.store import check_table_name, refuse_output

    if users is None and out is None:
        return None
    if users is None or out is None:
        raise MedappsError(f"{option} and --out belong together.", fix="Give both.")
    check_table_name(out)
    refuse_output(out, force=job.force, inputs=[users, job.config, *inputs])
    return Output(users, out, job.force)
