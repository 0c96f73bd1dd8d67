"""`medapps recommend`: which product a user takes next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from medapps.cli.common import Job, Result, command


@command("recommend", example="medapps recommend --dim 10 --users users.parquet --out recs.parquet")
def recommend(
    job: Job,
    dim: Annotated[int, typer.Option("--dim", help="Size of the service vectors.")] = 10,
    interactions: Annotated[
        Path | None, typer.Option(help="Table of interactions; else the one beside the graph.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="A dataset folder; else the newest.")] = None,
    method: Annotated[
        str, typer.Option(help="med, a baseline, or none, random, shuffled, oracle.")
    ] = "med",
    embedding: Annotated[
        Path | None, typer.Option(help="An embedding's folder; else the newest.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many networks are trained.")] = 3,
    epochs: Annotated[int | None, typer.Option(help="Most passes over the interactions.")] = None,
    users: Annotated[
        Path | None, typer.Option(help="Recommend for these users too: a file of ids.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Items per user.")] = 10,
    out: Annotated[
        Path | None, typer.Option(help="Where the lists go: .parquet, .csv or .tsv.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Name the nearest users who took each item.")
    ] = False,
    export: Annotated[
        str | None, typer.Option(metavar="onnx", help="Also write a device bundle.")
    ] = None,
    bundle: Annotated[Path | None, typer.Option(help="Folder of the bundle.")] = None,
) -> Result:
    """Train and test NCF with the crop as service vector; full and sampled ranking."""
    settings = job.settings({"recommend.ncf.epochs": epochs})
    from medapps.cli.tables import facts, rows
    from medapps.cli.tell import (
        export_bundle,
        metric_rows,
        recommend_users,
        recommend_values,
        wanted,
    )
    from medapps.stages.inputs import task_inputs
    from medapps.stages.tasks import recommend_stage

    found = task_inputs(
        job.bench,
        settings.graph,
        "interactions",
        method=method,
        dim=dim,
        data=data,
        table=interactions,
        embedding=embedding,
        seed=job.seed,
    )
    asked = None
    if users is not None or out is not None or explain:
        inputs = (interactions, found.table, data, embedding, job.config)
        asked = wanted("--users", users, out, force=job.force, inputs=inputs)
    report, folder = recommend_stage(
        job.bench,
        found.vectors,
        found.table,
        settings.recommend,
        data=found.data,
        seeds=tuple(range(job.seed, job.seed + seeds)),
    )
    values: dict[str, Any] = {"artifact": folder, "data": found.data, **recommend_values(report)}
    show: list[Any] = [rows(metric_rows(report))]
    model = job.workspace.folder("recommender", folder.name)
    if asked is not None:
        values |= recommend_users(model, found.vectors.source, asked, k, explain)
    if export is not None:
        place = bundle or job.workspace.folder("bundle", folder.name)
        values |= export_bundle(model, export, place, force=job.force or bundle is None)
    return Result(values, [*show, facts(values), "Next: medapps compare."])
