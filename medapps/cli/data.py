"""`medapps data`: make a data set, look at one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from medapps.cli.common import Job, Result, command, command_group

data = command_group("data", "Make a data set, or check one.")
_PROBLEM = ("severity", "what", "message", "count", "rows", "file")
_MADE = ("entities", "relations", "triples", "users", "items", "interactions")


@command("synth", example="medapps data synth --out data/demo --preset demo", group=data)
def synth(
    job: Job,
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")],
    preset: Annotated[str, typer.Option(help="tiny, demo, medium or paper.")] = "demo",
    users: Annotated[int | None, typer.Option(help="Number of users, if not the preset's.")] = None,
) -> Result:
    """Write a synthetic social graph with labels, purchases and the latents that caused them."""
    from medapps.cli.tables import facts
    from medapps.graph.synth import synthesize
    from medapps.stages import Stage

    name = out.resolve().name
    params = {"preset": preset, "users": users, "seed": job.seed}
    tags = {"task": "synth", "data": name}
    with job.runner.run(Stage("synth", "data", params, {}, name, f"synth {preset}", tags)) as run:
        made = synthesize(out, preset, users, job.seed, force=job.force)
        run.artifact(out / "manifest.json")
    values = {
        "artifact": made.folder,
        **{key: getattr(made, key) for key in _MADE},
        "labels": list(made.labels),
        "problems": [],
    }
    return Result(values, [facts(values), f"Next: medapps train --kg {out}"])


@command("check", example="medapps data check data/demo", group=data)
def check(
    job: Job,
    path: Annotated[Path, typer.Argument(help="A graph file or a dataset folder.")],
) -> Result:
    """Count what a data set holds and list what is wrong with it; exit 2 when it cannot be used."""
    from medapps.cli.tables import facts, rows
    from medapps.graph.check import check_dataset

    settings = job.settings()
    found = check_dataset(path, settings.graph, settings.tables)
    values = {
        "artifact": None,
        **dict.fromkeys(_MADE, 0),
        "labels": [],
        **found.counts,
        "problems": [
            {key: getattr(problem, key) for key in _PROBLEM} for problem in found.problems
        ],
        "degrees": found.degrees.to_dicts(),
        "relation_table": found.relations.to_dicts(),
    }
    show: list[RenderableType] = []
    if found.counts:
        show += [facts(found.counts), rows(found.relations.head(20), "relations")]
        show.append(rows(found.degrees, "degree"))
    for problem in found.problems:
        lines = f" (rows {', '.join(f'{row:,}' for row in problem.rows)})" if problem.rows else ""
        colour = "red" if problem.severity == "error" else "yellow"
        text = f" {problem.what}: {problem.message}{lines}"
        show.append(Text.assemble((problem.severity, colour), text))
    if not found.problems:
        show.append("No problems found.")
    return Result(values, show, exit_code=2 if found.errors else 0)
