"""`medapps run` and `medapps demo`: a whole study from one file, the user's or ours."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from medapps.cli.common import Job, Result, command
from medapps.cli.options import OutFolder


@command("run", example="medapps run configs/skg_table.yaml --data ../data")
def run(
    job: Job,
    file: Annotated[Path, typer.Argument(help="A YAML file with a study section.")],
    data: Annotated[
        Path | None,
        typer.Option(envvar="MEDAPPS_DATA", help="Folder that holds the data sets by name."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="One seed and a small budget, which the file and --set may change."
        ),
    ] = False,
    out: OutFolder = None,
) -> Result:
    """Run a study: every method, size, task and seed; what is finished is skipped."""
    job.config = file
    return run_settings(job, data=data, quick=quick, out=out)


@command("demo", example="medapps demo")
def demo(
    job: Job,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smaller budget, to see that all runs.")
    ] = False,
    out: OutFolder = None,
) -> Result:
    """Make data, train MED and its baselines, run both tasks and compare: a few minutes."""
    from medapps.study.config import DEMO

    job.config = job.config or DEMO
    result = run_settings(job, quick=quick, out=out)
    result.show.append(f"Look at it: medapps ui --workspace {job.root}")
    return result


def run_settings(
    job: Job,
    *,
    data: Path | None = None,
    quick: bool = False,
    out: Path | None = None,
) -> Result:
    """Run a study and show its table."""
    from medapps.cli.compare import tables
    from medapps.cli.tables import training_bar
    from medapps.comparison.write import copy_files
    from medapps.study.plan import quick as reduced
    from medapps.study.plan import shifted
    from medapps.study.run import run_study
    from medapps.train.session import Session

    settings = job.settings(partial(reduced, given=job.given) if quick else None)
    settings = shifted(settings, job.seed)
    with job.stopping() as stop, training_bar(job) as bar:
        done = run_study(job.runner, settings, data=data, session=Session(progress=bar, stop=stop))
    where = done.folder
    if out is not None:
        copy_files(done.folder, out, force=job.force)
        where = out
    job.run_id = next(iter(done.runs.values()), None)
    values = {
        "artifact": where,
        "study": settings.study.name,
        "stages": len(done.ledger),
        "skipped": done.skipped,
        "carried_out": done.carried_out,
        "runs": dict(done.runs),
        "rows": done.comparison.plain(),
    }
    counts = f"{done.carried_out} stages run, {done.skipped} done before."
    return Result(values, [*tables(done.comparison), f"{counts} Table and plots: {where}"])
