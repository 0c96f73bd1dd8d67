"""The stages of the two tasks: labels and recommendations from any vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medapps.comparison.grid import HEADLINES
from medapps.graph.beside import read_interactions, read_labels
from medapps.graph.tables import find_table
from medapps.report import Report
from medapps.stages.bench import Bench, Stage, carry_out
from medapps.stages.vectors import Vectors
from medapps.store import file_digest
from medapps.tracking import Run

if TYPE_CHECKING:
    from medapps.tasks.config import LabelConfig, RecommendConfig

Save = Callable[..., None]


def label_stage(
    bench: Bench,
    vectors: Vectors,
    labels: Path,
    config: LabelConfig,
    *,
    data: str,
    seeds: tuple[int, ...],
    keep_model: bool = True,
) -> tuple[Report, Path]:
    """Label users; the model is kept as labellers/<name of the report's folder>."""
    from medapps.tasks.label import train_labeller
    from medapps.tasks.labels import label_columns

    table = read_labels(labels)
    first = next(iter(label_columns(table)), None)
    column = config.column or first
    config = config.model_copy(update={"column": column})
    assert vectors.source is not None, "labels are read from vectors"
    source = vectors.source

    def work(run: Run) -> tuple[Report, Save]:
        done = train_labeller(source, table, config, seeds=seeds, run=run, data=data)
        return done.report, done.model.save

    return _task_stage(
        bench,
        "label",
        "label" if column == first else f"label-{column}",
        vectors,
        config.plain() | {"seeds": list(seeds)},
        {"labels": file_digest(labels)},
        data,
        work,
        "labeller" if keep_model else None,
        {"label": column},
    )


def recommend_stage(
    bench: Bench,
    vectors: Vectors,
    interactions: Path,
    config: RecommendConfig,
    *,
    data: str,
    seeds: tuple[int, ...],
    keep_model: bool = True,
) -> tuple[Report, Path]:
    """Recommend products; the model is kept as recommenders/<name of the report's folder>."""
    import polars as pl

    negatives = find_table(interactions.parent, ["test_negatives"])
    parents = {"interactions": file_digest(interactions)}
    if negatives is not None:
        parents["negatives"] = file_digest(negatives)

    def work(run: Run) -> tuple[Report, Save]:
        from medapps.tasks.recommend import train_recommender
        from medapps.tasks.study import prepare

        own = pl.read_parquet(negatives) if negatives else None
        problem = prepare(read_interactions(interactions), config, own)
        done = train_recommender(vectors.source, problem, config, seeds=seeds, run=run, data=data)
        return done.report, done.model.save

    return _task_stage(
        bench,
        "recommend",
        "recommend",
        vectors,
        config.plain() | {"seeds": list(seeds)},
        parents,
        data,
        work,
        "recommender" if keep_model else None,
    )


def _task_stage(
    bench: Bench,
    task: str,
    title: str,
    vectors: Vectors,
    settings: dict[str, Any],
    inputs: dict[str, str],
    data: str,
    work: Callable[[Run], tuple[Report, Save]],
    model_kind: str | None,
    tags: dict[str, object] | None = None,
) -> tuple[Report, Path]:
    """One task on one set of vectors: report, costs in the run, and perhaps the model."""
    origin = vectors.origin
    stage = Stage(
        task,
        "report",
        settings | {"method": origin.method, "dim": origin.dim},
        inputs | {"vectors": origin.digest},
        data,
        f"{origin.method}/{origin.dim}/{title}/{origin.seed}",
        origin.tags(task, data) | (tags or {}),
    )

    def make(run: Run, folder: Path) -> None:
        with run.results_first(HEADLINES[task]):
            report, save = work(run)
        options = {key: value for key, value in settings.items() if key != "seeds"}
        report = origin.mark(report, options)
        run.metrics(report.cost)
        given: dict[str, Any] = {
            "config": dict(stage.config),
            "parents": dict(stage.parents),
            "force": True,
        }
        if model_kind is not None:
            kept = bench.workspace.folder(model_kind, stage.key)
            save(kept, **given)
            if model_kind == "recommender":
                from medapps.tasks.register import log_recommender

                log_recommender(run, kept)
        report.save(folder, **given)

    if model_kind is not None and not bench.workspace.finished(model_kind, stage.key):
        bench = replace(bench, force=True)
    return carry_out(bench, stage, make, Report.load)
