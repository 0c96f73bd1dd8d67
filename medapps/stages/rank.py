"""The stage that ranks: one sweep of all sizes, one report and one run per size."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from medapps.crop.crop import Crop
from medapps.crop.embedding import Embedding
from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.report import Report
from medapps.stages.bench import Bench, Stage, carry_out
from medapps.stages.newest import newest_graph
from medapps.stages.origin import origin_of
from medapps.stages.vectors import find_vectors
from medapps.store import Provenance, Workspace
from medapps.tracking import Run


def rank_stage(
    bench: Bench,
    graph: Graph,
    source: Embedding | Crop,
    *,
    split: str = "test",
    candidates: int | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> list[tuple[Report, Path]]:
    """Filtered link prediction of every size of an embedding, or of one crop."""
    from medapps.evaluate.link_prediction import rank_crop, rank_embedding

    options = {"split": split, "candidates": candidates, "limit": limit}

    @cache
    def sweep() -> tuple[dict[int, Report], dict[str, Any]]:
        given: dict[str, Any] = options | {"seed": seed}
        if isinstance(source, Crop):
            reports, figures = rank_crop(source, graph, **given)
        else:
            reports, figures = rank_embedding(source, graph, **given)
        return {report.dim: report for report in reports}, figures

    dims = (source.dim,) if isinstance(source, Crop) else source.dims
    out = []
    for dim in dims:
        origin = origin_of(source, dim)
        stage = Stage(
            "rank",
            "report",
            options | {"seed": seed, "method": origin.method, "dim": dim},
            {"graph": graph.digest, "vectors": origin.digest},
            graph.name,
            f"{origin.method}/{dim}/rank/{origin.seed}",
            origin.tags("rank", graph.name),
        )

        def make(run: Run, folder: Path, stage: Stage = stage, dim: int = dim) -> None:
            reports, figures = sweep()
            numbers = {key: value for key, value in figures.items() if key.startswith("arr")}
            report = origin_of(source, dim).mark(reports[dim], options)
            report = replace(report, details=report.details | {"retention": numbers})
            run.metrics(report.metrics)
            run.metrics(report.cost)
            for name, table in report.tables.items():
                run.text(table.write_csv(), f"{name}.csv")
            report.save(folder, Provenance(stage.config, stage.parents, ours=True))

        out.append(carry_out(bench, stage, make, Report.load))
    return out


def find_ranked(
    workspace: Workspace, method: str, dim: int | None, graph: Graph | None, embedding: Path | None
) -> tuple[Embedding | Crop, Graph]:
    """The newest embedding, or the newest crop of a baseline, and its graph."""
    graph = graph or newest_graph(workspace, embedding)
    if method == "med":
        folder = embedding or workspace.newest("embedding", method="med", graph_digest=graph.digest)
        if folder is None:
            raise MedappsError(
                f"No embedding of {graph.name} was trained in {workspace.root}.",
                fix=f"Train one: medapps train --kg {graph.source}",
            )
        return Embedding.load(folder), graph
    if dim is None:
        raise MedappsError(f"{method} is made for one size.", fix="Say which: --dim 10.")
    vectors, graph = find_vectors(workspace, method, dim, graph=graph)
    if not isinstance(vectors.source, Crop):
        raise MedappsError(f"The control {method} has no triples to rank.")
    return vectors.source, graph
