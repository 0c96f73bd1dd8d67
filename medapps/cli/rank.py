"""`medapps rank`: link prediction of every size in one sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from medapps.cli.common import Job, Result, command
from medapps.cli.options import Embedding


@command("rank", example="medapps rank")
def rank(
    job: Job,
    embedding: Embedding = None,
    kg: Annotated[
        Path | None, typer.Option("--kg", help="The dataset; by default what it was trained on.")
    ] = None,
    method: Annotated[str, typer.Option(help="med, or a baseline with --dim.")] = "med",
    dim: Annotated[int | None, typer.Option(help="Size of the baseline.")] = None,
    split: Annotated[
        str | None,
        typer.Option(help="test, valid or train; else test, valid or what was held out."),
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(min=1, help="Rank among so many sampled entities; all by default."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Rank at most so many triples.")] = None,
) -> Result:
    """Filtered link prediction of every trained size: MRR, Hit@k, efficiency and retention."""
    from medapps.evaluate.link_prediction import RankOptions
    from medapps.stages import graph_stage, rank_stage
    from medapps.stages.find import find_ranked, ranked_split

    settings = job.settings()
    graph = graph_stage(job.runner, kg, settings)[0] if kg else None
    source, graph = find_ranked(job.workspace, method, dim, graph, embedding)
    given, called = graph, split
    if split is None:
        graph, split = ranked_split(given, source)
        called = split if len(getattr(given, split)) else "held-out"
    if called != "test":
        job.say(f"Ranked are {called} triples.")
    options = RankOptions(split, candidates, job.seed, limit)
    ranked = rank_stage(job.runner, graph, source, options)
    reports = [report for report, _ in ranked]
    details = reports[-1].details
    values: dict[str, Any] = {
        "artifact": ranked[-1][1],
        "data": graph.name,
        "method": method,
        "split": called,
        **{key: details[key] for key in ("triples", "candidates", "sampled")},
        "dims": {str(report.dim): report.metrics for report in reports},
        **(details["retention"] if len(reports) > 1 else {"arr": None}),
    }
    return Result(values, [_table(values), "Next: medapps compare."])


def _table(values: dict[str, Any]) -> Any:
    from rich.table import Table

    from medapps.cli.tables import cell

    names = ("mrr", "hits_at_1", "hits_at_3", "hits_at_10", "effi")
    arr = values["arr"]
    title = f"{values['data']}: {values['triples']:,} {values['split']} triples"
    if values["sampled"]:
        title += f", sampled: ranked among {values['candidates']:,} entities"
    table = Table(title=title if arr is None else f"{title}, ARR {arr:.3f}", title_justify="left")
    for name in ("dim", "MRR", "Hit@1", "Hit@3", "Hit@10", "Effi"):
        table.add_column(name, justify="right")
    for dim, metrics in values["dims"].items():
        table.add_row(dim, *(cell(metrics[name]) for name in names))
    return table
