"""`medapps demo`: the whole chain on synthetic data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medapps.cli.common import Job, Result, command


@command("demo", example="medapps demo")
def demo(
    job: Job,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smaller budget, to see that all runs.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for Markdown, csv, json and plots.")
    ] = None,
) -> Result:
    """Make data, train MED and its baselines, run both tasks and compare: a few minutes."""
    from medapps.cli.run import run_settings
    from medapps.study.config import DEMO

    job.config = job.config or DEMO
    result = run_settings(job, quick=quick, out=out)
    result.show.append(f"Look at it: medapps ui --workspace {job.root}")
    return result
