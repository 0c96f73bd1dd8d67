"""`medapps recommend`: which product a user takes next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from medapps.cli.common import Job, Result, command
from medapps.cli.task import Data, Dim, Embedding, Out, Seeds, check_output, read_inputs

if TYPE_CHECKING:
    import polars as pl

    from medapps.recommend.model import Recommender
    from medapps.report import Report


@command("recommend", example="medapps recommend --dim 10 --users users.parquet --out recs.parquet")
def recommend(
    job: Job,
    dim: Dim = 10,
    interactions: Annotated[
        Path | None, typer.Option(help="Table of interactions; else the one beside the graph.")
    ] = None,
    data: Data = None,
    method: Annotated[
        str, typer.Option(help="med, a baseline, or none, random, shuffled, oracle.")
    ] = "med",
    embedding: Embedding = None,
    seeds: Seeds = 3,
    epochs: Annotated[int | None, typer.Option(help="Most epochs of a training.")] = None,
    users: Annotated[
        Path | None, typer.Option(help="Recommend for these users too: a file of ids.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Items per user.")] = 10,
    out: Out = None,
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
    from medapps.errors import MedappsError
    from medapps.recommend.model import Recommender
    from medapps.serve.onnx import export_onnx
    from medapps.stages.tasks import Wanted, recommend_stage

    if export not in (None, "onnx"):
        raise MedappsError(f"There is no export {export!r}.", fix="Use --export onnx.")
    if explain and users is None:
        raise MedappsError("--explain needs --users and --out.", fix="Give both.")
    wanted = Wanted(method, dim, data, interactions, embedding, job.seed, seeds)
    inputs = read_inputs(job, settings, "interactions", wanted)
    output = check_output(job, "--users", users, out, (inputs.table, *wanted.files))
    report, folder = recommend_stage(job.runner, inputs, settings.recommend)
    values: dict[str, Any] = {"artifact": folder, "data": inputs.data, **_values(report)}
    if output is not None or export is not None:
        model = Recommender.load(job.workspace.folder("recommender", folder.name))
    if output is not None:
        source, asked = inputs.vectors.source, output.ids(model.users.dtype)
        known = model.users.ids(asked) >= 0
        if source is not None:
            known |= source.vectors(asked)[1]
        unknown = output.unknown(asked, known)
        table = model.recommend_for(asked, k, source)
        output.write(_explained(model, table) if explain else table)
        values |= {"recommended": len(table), "unknown": unknown, "k": k, "out": out}
    if export is not None:
        place = bundle or job.workspace.folder("bundle", folder.name)
        made = export_onnx(model, place, force=job.force or bundle is None)
        values |= {"bundle": place} | made
    return Result(values, [rows(_metrics(report)), facts(values), "Next: medapps compare."])


def _explained(model: Recommender, table: pl.DataFrame) -> pl.DataFrame:
    """The lists with the nearest users who took each item."""
    import polars as pl

    reasons = model.explain(table).group_by("user", "item", maintain_order=True)
    return table.join(
        reasons.agg(pl.col("neighbour").alias("neighbours"), pl.col("similarity")),
        on=["user", "item"],
        how="left",
        maintain_order="left",
    )


def _values(report: Report) -> dict[str, Any]:
    """The stable keys of --json: full.ndcg_at_10 becomes full: ndcg_at_10."""
    values: dict[str, Any] = {"dim": report.dim, "method": report.method}
    for name, value in report.metrics.items():
        part, _, metric = name.partition(".")
        values.setdefault(part, {})[metric] = value
    kept = ("users", "items", "missing_users", "cold_users", "beside", "notes")
    return values | {key: report.details[key] for key in kept}


def _metrics(report: Report) -> pl.DataFrame:
    """One line per method and kind of user, as people read them."""
    import polars as pl

    shown = ("ndcg_at_5", "ndcg_at_10", "hit_at_10", "mrr")
    names = {"full": "all users", "cold": "users without interactions", "sampled": "99 negatives"}
    lines = []
    for method, metrics in {report.method: report.metrics, **report.details["beside"]}.items():
        for part in dict.fromkeys(name.partition(".")[0] for name in metrics):
            title = names.get(part) or f"users with at most {part.removeprefix('few')}"
            values = {m.replace("_at_", "@"): metrics.get(f"{part}.{m}") for m in shown}
            lines.append({"method": method, "ranking": title} | values)
    return pl.DataFrame(lines)
