"""`medapps label`: which class a user belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from medapps.cli.common import Job, Result, command


@command("label", example="medapps label --dim 500 --label join_period")
def label(
    job: Job,
    dim: Annotated[int, typer.Option("--dim", help="Size of the vectors.")] = 500,
    column: Annotated[
        str | None, typer.Option("--label", help="Label column; else the first one.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Table of labels; else the one beside the graph.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="A dataset folder; else the newest.")] = None,
    method: Annotated[
        str, typer.Option(help="med, a baseline, or random, shuffled, oracle.")
    ] = "med",
    embedding: Annotated[
        Path | None, typer.Option(help="An embedding's folder; else the newest.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many networks are trained.")] = 5,
    predict: Annotated[
        Path | None, typer.Option(help="Label these users too: a file of ids.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where their labels go: .parquet, .csv or .tsv.")
    ] = None,
) -> Result:
    """Train and test a small network that reads a user's class from its vector."""
    settings = job.settings({"label.column": column})
    from medapps.cli.tables import facts, rows
    from medapps.cli.tell import label_values, predict_users, wanted
    from medapps.stages.inputs import task_inputs
    from medapps.stages.tasks import label_stage

    found = task_inputs(
        job.bench,
        settings.graph,
        "labels",
        method=method,
        dim=dim,
        data=data,
        table=labels,
        embedding=embedding,
        seed=job.seed,
    )
    asked = None
    if predict is not None or out is not None:
        inputs = (labels, found.table, data, embedding, job.config)
        asked = wanted("--predict", predict, out, force=job.force, inputs=inputs)
    report, folder = label_stage(
        job.bench,
        found.vectors,
        found.table,
        settings.label,
        data=found.data,
        seeds=tuple(range(job.seed, job.seed + seeds)),
    )
    values: dict[str, Any] = {"artifact": folder, "data": found.data, **label_values(report)}
    show: list[Any] = [rows(report.tables["beside"]), rows(report.tables["classes"])]
    if asked is not None:
        model = job.workspace.folder("labeller", folder.name)
        values |= predict_users(model, found.vectors.source, asked)
    return Result(values, [*show, facts(values), "Next: medapps recommend, or compare."])
