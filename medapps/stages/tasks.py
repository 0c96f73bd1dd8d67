"""The stages that measure vectors (link prediction, labels, recommendations) and compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from medapps.comparison.gather import Found
from medapps.comparison.grid import HEADLINES, markdown
from medapps.comparison.table import TIER_OF, Comparison, compare
from medapps.comparison.write import KIND, load_comparison, save_comparison
from medapps.crop.crop import Crop
from medapps.crop.embedding import Embedding
from medapps.crop.service import user_vectors
from medapps.errors import MedappsError
from medapps.graph.config import Column
from medapps.graph.graph import Graph
from medapps.graph.split import PurchaseSplit
from medapps.graph.tables import find_table, table_file
from medapps.graph.user_tables import label_columns, read_labels
from medapps.report import Report
from medapps.stages.find import Vectors, find_graph, find_split, find_vectors, no_vectors, origin_of
from medapps.stages.graph import graph_stage, split_stage
from medapps.stages.publish import Publish, publish_again, publish_labels, publish_lists
from medapps.stages.runner import Runner, Stage, run_stage
from medapps.store import Provenance, file_digest
from medapps.tracking import Run

if TYPE_CHECKING:
    import polars as pl

    from medapps.evaluate.link_prediction import RankOptions
    from medapps.label.config import LabelConfig
    from medapps.recommend.config import RecommendConfig
    from medapps.settings import Settings


class Model(Protocol):
    """What a task trained."""

    def save(self, folder: Path, provenance: Provenance) -> None: ...


@dataclass(frozen=True)
class TaskInputs:
    """What a task reads: vectors, its table and the name of the data set; and its seeds."""

    vectors: Vectors
    table: Path
    data: str
    seeds: tuple[int, ...] = (0,)
    keep_model: bool = True
    """Keep what was trained, under the name of the report's folder."""
    split: PurchaseSplit | None = None
    """What each purchase is for, where the task recommends."""
    graph: Graph | None = None
    """The graph that the vectors come from, where it is at hand."""
    user_column: Column = "user"
    """What the labels call their users."""


@dataclass(frozen=True)
class Wanted:
    """What a user asks a task to read; whatever is not named is found."""

    method: str
    dim: int
    data: Path | None = None
    table: Path | None = None
    embedding: Path | None = None
    seed: int = 0
    seeds: int = 1

    @property
    def files(self) -> tuple[Path | None, ...]:
        """What a command reads, and so must not replace."""
        return self.table, self.data, self.embedding


def task_inputs(runner: Runner, settings: Settings, stem: str, wanted: Wanted) -> TaskInputs:
    """Vectors of a method and the table `stem` (labels, interactions), by default the newest.

    Without vectors (method none) a data set needs no graph. Purchases are split as they were for
    the graph.
    """
    found = _found_inputs(runner, settings, stem, wanted)
    if stem != "interactions" or found.split is not None:
        return found
    return replace(found, split=split_stage(runner, found.table, settings))


def _found_inputs(runner: Runner, settings: Settings, stem: str, wanted: Wanted) -> TaskInputs:
    seeds = tuple(range(wanted.seed, wanted.seed + wanted.seeds))
    if wanted.method == "none" and stem == "labels":
        raise MedappsError(
            "Labels are read from vectors, so that --method none has nothing to read.",
            fix="Use --method random as a control.",
        )
    if wanted.method == "none" and wanted.data is not None:
        file = wanted.table or table_file(wanted.data, stem)
        return TaskInputs(no_vectors(seed=wanted.seed), file, wanted.data.resolve().name, seeds)
    graph = (
        graph_stage(runner, wanted.data, settings)[0]
        if wanted.data is not None
        else find_graph(runner.workspace, wanted.embedding)
    )
    vectors = find_vectors(
        runner.workspace,
        wanted.method,
        wanted.dim,
        graph,
        embedding=wanted.embedding,
        seed=wanted.seed,
    )
    table = wanted.table or table_file(Path(graph.source), stem)
    split = find_split(runner.workspace, graph, table) if stem == "interactions" else None
    user = settings.labels.user
    return TaskInputs(vectors, table, graph.name, seeds, split=split, graph=graph, user_column=user)


@dataclass(frozen=True)
class _Task:
    """One task on one set of vectors."""

    name: str
    inputs: TaskInputs
    options: dict[str, Any]
    """Settings without the seeds."""
    parents: dict[str, str]
    model_kind: str | None = None
    title: str = ""
    tags: dict[str, object] = field(default_factory=dict)
    publish: Publish | None = None
    """Logs what was trained as a model of MLflow."""

    @property
    def stage(self) -> Stage:
        origin, data = self.inputs.vectors.origin, self.inputs.data
        settings = {
            "seeds": list(self.inputs.seeds),
            "method": origin.method,
            "dim": origin.dim,
        }
        return Stage(
            self.name,
            "report",
            self.options | settings,
            self.parents | {"vectors": origin.digest},
            data,
            f"{origin.method}/{origin.dim}/{self.title or self.name}/{origin.seed}",
            origin.tags(self.name, data) | self.tags,
        )

    def runner(self, runner: Runner) -> Runner:
        """One that runs the task again where its model is wanted and was not kept."""
        kind = self.model_kind
        if kind is None or runner.workspace.finished(kind, self.stage.key):
            return runner
        return replace(runner, force=True)


def _measure(
    runner: Runner, task: _Task, work: Callable[[Run], tuple[Report, Model | None]]
) -> tuple[Report, Path]:
    """Report, costs in the run, and perhaps the model."""
    stage, origin = task.stage, task.inputs.vectors.origin

    def make(run: Run, folder: Path) -> Report:
        with run.results_first(HEADLINES[task.name]):
            report, model = work(run)
        report = origin.mark(report, task.options)
        run.metrics(report.cost)
        if task.model_kind is not None and model is not None:
            kept = runner.workspace.folder(task.model_kind, stage.key)
            model.save(kept, stage.provenance())
            if task.publish is not None:
                task.publish(run, kept)
        return report.save(folder, stage.provenance())

    report, folder = run_stage(runner, stage, make, Report.load)
    _warn(runner, report)
    if task.model_kind is not None and task.publish is not None:
        publish_again(runner, stage, task.model_kind, task.publish)
    return report, folder


def _warn(runner: Runner, report: Report) -> None:
    """Say which users a task could not learn from."""
    details = report.details
    users, missing = details["users"], details.get("missing_users", 0)
    if missing:
        runner.say(
            f"Warning: {missing:,} of {users:,} users are not in the graph and have no vector."
        )
    empty = details.get("notes", {}).get("unlabelled", 0)
    if empty:
        runner.say(f"Warning: {empty:,} users have no value of {details['label']}: left out.")


def label_stage(runner: Runner, inputs: TaskInputs, config: LabelConfig) -> tuple[Report, Path]:
    """Label users; the model is kept as labellers/<name of the report's folder>."""
    table = read_labels(inputs.table, user=inputs.user_column)
    called = {} if inputs.user_column == "user" else {"user": str(inputs.user_column)}
    first = next(iter(label_columns(table.schema)), None)
    column = config.column or first
    config = config.model_copy(update={"column": column})
    source = inputs.vectors.source
    assert source is not None, "labels are read from vectors"
    task = _Task(
        "label",
        inputs,
        config.plain(),
        {"labels": file_digest(inputs.table)} | called,
        "labeller" if inputs.keep_model else None,
        "label" if column == first else f"label-{column}",
        {"label": column},
        publish_labels(inputs.vectors, table["user"]),
    )
    runner = task.runner(runner)
    if not runner.kept(task.stage):  # what cannot be learned is refused before a run is opened
        from medapps.label.run import learnable

        learnable(source, table, config, len(inputs.seeds))

    def work(run: Run) -> tuple[Report, Model]:
        from medapps.label.run import train_labeller

        done = train_labeller(source, table, config, run=run, seeds=inputs.seeds, data=inputs.data)
        return done.report, done.model

    return _measure(runner, task, work)


def recommend_stage(
    runner: Runner, inputs: TaskInputs, config: RecommendConfig
) -> tuple[Report, Path]:
    """Recommend products; the model is kept as recommenders/<name of the report's folder>."""
    kind = "recommender" if inputs.keep_model else None
    if config.model != "ncf-paper":  # its parts are chosen, not drawn: one fit says it all
        inputs = replace(inputs, seeds=inputs.seeds[:1])
    task = _Task(
        "recommend",
        inputs,
        config.plain(),
        _recommend_parents(inputs),
        kind,
        publish=publish_lists(inputs.vectors),
    )
    runner = task.runner(runner)
    source, split = inputs.vectors.source, inputs.split
    assert split is not None, "recommendations start from a split"
    if not runner.kept(task.stage):  # what cannot be done is refused before a run is opened
        from medapps.recommend.ncf_paper.problem import check_list_length

        check_list_length(split, config)
        if source is not None:
            user_vectors(source, split.users)
        if config.model != "ncf-paper":
            from medapps.recommend.run import check_vectors

            check_vectors(source, split, config)

    def work(run: Run) -> tuple[Report, Model]:
        own = _own_negatives(inputs.table)
        if config.model == "ncf-paper":
            from medapps.recommend.ncf_paper.problem import prepare
            from medapps.recommend.ncf_paper.run import train_ncf_paper

            problem = prepare(split, config, own)
            paper = train_ncf_paper(
                source, problem, config, run=run, seeds=inputs.seeds, data=inputs.data
            )
            return paper.report, paper.model
        from medapps.recommend.run import train_recommender

        seed, data = inputs.seeds[0], inputs.data
        done = train_recommender(
            source, split, config, run=run, seed=seed, data=data, negatives=own
        )
        return done.report, done.model

    return _measure(runner, task, work)


def reference_stage(
    runner: Runner, inputs: TaskInputs, config: RecommendConfig
) -> tuple[Report, Path]:
    """Recommend products by popularity, ALS and so on, which use no graph, on the same split."""
    kept = ("sampled_negatives", "few", "list_length")
    options = {key: value for key, value in config.plain().items() if key in kept}
    task = _Task("recommend", inputs, options, _recommend_parents(inputs))
    split = inputs.split
    assert split is not None, "recommendations start from a split"

    def work(run: Run) -> tuple[Report, None]:
        from medapps.recommend.run import reference_report

        name, seed = inputs.vectors.origin.method, inputs.seeds[0]
        report = reference_report(name, split, config, seed=seed, data=inputs.data)
        run.metrics(report.metrics)
        return report, None

    return _measure(runner, task, work)


def _recommend_parents(inputs: TaskInputs) -> dict[str, str]:
    """Digests of the split and, where a data set has its own negatives, of those."""
    assert inputs.split is not None, "recommendations start from a split"
    parents = {"split": inputs.split.digest}
    if (negatives := find_table(inputs.table.parent, ["test_negatives"])) is not None:
        parents["negatives"] = file_digest(negatives)
    return parents


def _own_negatives(interactions: Path) -> pl.DataFrame | None:
    """A data set's own candidates for the sampled protocol, if there are any beside it."""
    import polars as pl

    negatives = find_table(interactions.parent, ["test_negatives"])
    return pl.read_parquet(negatives, glob=False) if negatives else None


def rank_stage(
    runner: Runner, graph: Graph, source: Embedding | Crop, options: RankOptions | None = None
) -> list[tuple[Report, Path]]:
    """Filtered link prediction of every size of an embedding, or of one crop."""
    from medapps.evaluate import link_prediction as verb

    options = options or verb.RankOptions()
    settings = asdict(options)
    options.triples(graph)  # refused before a run is opened
    verb.check_ranked(source, graph)

    @cache
    def sweep() -> dict[int, Report]:
        """All sizes at once, when the first of them is asked for."""
        if isinstance(source, Crop):
            reports, figures = verb.rank_crop(source, graph, **settings)
        else:
            reports, figures = verb.rank_embedding(source, graph, **settings)
        kept = {key: value for key, value in figures.items() if key.startswith("arr")}
        marked = (replace(r, details=r.details | {"retention": kept}) for r in reports)
        return {report.dim: report for report in marked}

    def one_size(dim: int) -> tuple[Report, Path]:
        origin = origin_of(source, dim)
        stage = Stage(
            "rank",
            "report",
            settings | {"method": origin.method, "dim": dim},
            {"graph": graph.digest, "vectors": origin.digest},
            graph.name,
            f"{origin.method}/{dim}/rank/{origin.seed}",
            origin.tags("rank", graph.name),
        )

        def make(run: Run, folder: Path) -> Report:
            recipe = {key: value for key, value in settings.items() if key != "seed"}
            report = origin.mark(sweep()[dim], recipe)
            run.metrics(report.metrics | report.cost)
            for name, table in report.tables.items():
                run.text(table.write_csv(), f"{name}.csv")
            return report.save(folder, stage.provenance())

        return run_stage(runner, stage, make, Report.load)

    return [one_size(dim) for dim in ((source.dim,) if isinstance(source, Crop) else source.dims)]


def compare_stage(
    runner: Runner,
    found: Sequence[Found],
    *,
    study: str = "",
    reference: str = "med",
    tiers: Mapping[int, str] = TIER_OF,
    seed: int = 0,
) -> tuple[Comparison, Path]:
    """Compare saved reports; the study's run, else one of its own, gets the table and the plots."""
    parents = {one.folder.name: one.digest for one in found}
    settings = {"study": study, "reference": reference, "tiers": dict(tiers), "seed": seed}
    data = sorted({one.report.data for one in found})
    experiment = data[0] if len(data) == 1 else "comparison"
    stage = Stage("compare", KIND, settings, parents, experiment, "compare")
    if done := runner.kept(stage):
        return load_comparison(done), done
    folder = runner.folder(stage)
    table = compare([one.report for one in found], reference=reference, tiers=tiers, seed=seed)
    about = {"study": study, "reports": [one.folder.name for one in found]}
    save_comparison(table, folder, stage.provenance(), about)
    with nullcontext(runner.parent()) if study else runner.run(stage) as run:
        run.describe(markdown(table))
        for file in sorted(folder.iterdir()):
            run.artifact(file, "comparison")
    return table, folder
