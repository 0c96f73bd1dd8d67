"""`medapps doctor`: versions, threads, memory, store."""

from __future__ import annotations

from rich.table import Table

from medapps.cli.common import Job, Result, command


@command("doctor", example="medapps doctor")
def doctor(job: Job) -> Result:
    """Look at this machine and say what would be slow or fail on it, and what mends it."""
    from medapps.doctor import examine

    findings = examine(job.root, tracked=job.tracked)
    table = Table(box=None, show_header=False)
    for finding in findings:
        mark = "[green]ok[/]" if not finding.problem else "[red]no[/]" if finding.fatal else "!"
        table.add_row(mark, f"[bold]{finding.name}[/]", finding.value, finding.problem or "")
    return Result(
        {
            "artifact": None,
            "findings": {finding.name: finding.value for finding in findings},
            "problems": [f"{f.name}: {f.problem}" for f in findings if f.problem],
        },
        [table],
        exit_code=2 if any(finding.fatal for finding in findings) else 0,
    )
