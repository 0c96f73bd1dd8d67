"""The stages of the two tasks: labels and recommendations from any vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medapps.comparison.grid import HEADLINES
from medapps.graph.labels import label_columns, read_labels
from medapps.graph.tables import find_table, regular_file
from medapps.report import Report
from medapps.stages.bench import Bench, Stage, carry_out
from medapps.stages.origin import Origin
from medapps.stages.vectors import Vectors
from medapps.store import Provenance, digest_of, file_digest
from medapps.tracking import Run

if TYPE_CHECKING:
    from medapps.label.config import LabelConfig
    from medapps.recommend.config import RecommendConfig
    from medapps.recommend.problem import Problem

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
    from medapps.label.run import train_labeller

    table = read_labels(labels)
    first = next(iter(label_columns(table.schema)), None)
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

    def work(run: Run) -> tuple[Report, Save]:
        from medapps.recommend.run import train_recommender

        problem = _problem(interactions, config)
        done = train_recommender(vectors.source, problem, config, seeds=seeds, run=run, data=data)
        return done.report, done.model.save

    return _task_stage(
        bench,
        "recommend",
        "recommend",
        vectors,
        config.plain() | {"seeds": list(seeds)},
        _recommend_inputs(interactions),
        data,
        work,
        "recommender" if keep_model else None,
    )


def reference_stage(
    bench: Bench,
    name: str,
    interactions: Path,
    config: RecommendConfig,
    *,
    data: str,
    seed: int,
) -> tuple[Report, Path]:
    """Recommend products by popularity, ALS or BPR, which know no graph, on the same split."""

    def work(run: Run) -> tuple[Report, Save | None]:
        from medapps.recommend.run import reference_report

        problem = _problem(interactions, config)
        report = reference_report(name, problem, config, seeds=(seed,), data=data)
        run.metrics(report.metrics)
        return report, None

    kept = ("core", "own_split", "cold_share", "bad_ratings", "sampled_negatives", "few")
    settings = {key: value for key, value in config.plain().items() if key in kept}
    return _task_stage(
        bench,
        "recommend",
        "recommend",
        Vectors(None, Origin(name, 0, digest_of(name), seed)),
        settings | {"seeds": [seed]},
        _recommend_inputs(interactions),
        data,
        work,
        None,
    )


def _recommend_inputs(interactions: Path) -> dict[str, str]:
    """Digests of the interactions and, where a data set has its own negatives, of those."""
    inputs = {"interactions": file_digest(regular_file(interactions))}
    if (negatives := find_table(interactions.parent, ["test_negatives"])) is not None:
        inputs["negatives"] = file_digest(negatives)
    return inputs


def _problem(interactions: Path, config: RecommendConfig) -> Problem:
    """The split that every method sees."""
    import polars as pl

    from medapps.recommend.problem import prepare

    negatives = find_table(interactions.parent, ["test_negatives"])
    own = pl.read_parquet(negatives, glob=False) if negatives else None
    return prepare(interactions, config, own)


def _task_stage(
    bench: Bench,
    task: str,
    title: str,
    vectors: Vectors,
    settings: dict[str, Any],
    inputs: dict[str, str],
    data: str,
    work: Callable[[Run], tuple[Report, Save | None]],
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
        given = Provenance(stage.config, stage.parents, ours=True)
        if model_kind is not None and save is not None:
            kept = bench.workspace.folder(model_kind, stage.key)
            save(kept, given)
            if model_kind == "recommender":
                from medapps.serve.recommender_register import log_recommender

                log_recommender(run, kept)
        report.save(folder, given)

    if model_kind is not None and not bench.workspace.finished(model_kind, stage.key):
        bench = replace(bench, force=True)
    report, folder = carry_out(bench, stage, make, Report.load)
    _warn(bench, report)
    return report, folder


def _warn(bench: Bench, report: Report) -> None:
    """Say which users a task could not learn from."""
    details = report.details
    users, missing = details["users"], details.get("missing_users", 0)
    if missing:
        bench.say(
            f"Warning: {missing:,} of {users:,} users are not in the graph and have no vector."
        )
    empty = details.get("notes", {}).get("unlabelled", 0)
    if empty:
        bench.say(f"Warning: {empty:,} users have no value of {details['label']}: left out.")
