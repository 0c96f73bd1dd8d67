"""`medapps doctor`: versions, threads, memory, store."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from medapps.cli.common import Job, Result, command


@command("doctor", example="medapps doctor")
def doctor(
    job: Job,
    repair: Annotated[
        bool, typer.Option("--repair", help="Replace a broken MLflow store; the old one is kept.")
    ] = False,
) -> Result:
    """Look at this machine and say what would be slow or fail on it, and what mends it."""
    from medapps.doctor import examine

    if repair:
        from medapps.tracking import repair as repair_store
        from medapps.tracking.sqlite import check_places

        check_places(job.root)
        aside = repair_store(job.root, job.say)
        if aside is None:
            job.say(f"The MLflow store of {job.root} needs no repair.")
        else:
            job.say(f"The MLflow store was broken and is now {aside}; a new one was made.")
    findings = examine(job.root, tracked=job.tracked)
    table = Table(Column(), Column(style="bold"), Column(), Column(), box=None, show_header=False)
    good, bad = Text("ok", "green"), Text("no", "red")
    for finding in findings:
        mark = good if not finding.problem else bad if finding.fatal else Text("!")
        table.add_row(mark, finding.name, finding.value, finding.problem or "")
    return Result(
        {
            "artifact": None,
            "findings": {finding.name: finding.value for finding in findings},
            "problems": [f"{f.name}: {f.problem}" for f in findings if f.problem],
        },
        [table],
        exit_code=2 if any(finding.fatal for finding in findings) else 0,
    )
