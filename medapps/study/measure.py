"""All tasks of a study on one data set, as stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from medapps.crop.crop import Crop
from medapps.crop.embedding import Embedding
from medapps.crop.select import Choice
from medapps.errors import Interrupted, MedappsError
from medapps.evaluate.link_prediction import RankOptions
from medapps.graph.graph import Graph
from medapps.graph.tables import table_file
from medapps.methods import CONTROLS, REFERENCES
from medapps.settings import Settings
from medapps.stages import (
    Baseline,
    Runner,
    TaskInputs,
    Vectors,
    baseline_stage,
    control_vectors,
    crop_stage,
    crop_vectors,
    label_stage,
    no_vectors,
    rank_stage,
    recommend_stage,
    reference_stage,
    split_stage,
    train_stage,
)
from medapps.stages.find import find_split
from medapps.study.config import StudyData, StudyTask
from medapps.study.plan import dims_of, methods_of, tasks_of
from medapps.train.session import Session


def sources(
    runner: Runner, graph: Graph, settings: Settings, method: str, dims: Sequence[int], seed: int
) -> list[Embedding | Crop]:
    """What a method gives at `dims`: one embedding of MED, or one crop per size.

    A student is smaller than its teacher: from the teacher's size on dt stands in for it.
    """
    measuring = Measuring(runner, settings, StudyData(name=graph.name), graph)
    trained = settings.train.dims
    if method == "med":
        missing = sorted(set(dims) - set(trained))
        if missing:
            raise MedappsError(
                f"Dimension {missing[0]} is not trained; train.dims are "
                f"{', '.join(map(str, trained))}.",
                fix=f"Add it: --set 'train.dims={sorted({*trained, *dims})}'.",
            )
        return [measuring.source("med", 0, seed)]
    teacher = settings.baseline.teacher_dim or trained[-1]
    return [measuring.source(method if dim < teacher else "dt", dim, seed) for dim in dims]


@dataclass(frozen=True)
class Measuring:
    """Makes vectors and measures them, method by method, so that results appear early."""

    runner: Runner
    settings: Settings
    item: StudyData
    graph: Graph
    session: Session = field(default_factory=Session)
    """Who is told how trainings go, and who may stop them."""
    made: dict[tuple[str, int, int], Embedding | Crop] = field(default_factory=dict)
    """Method, dim and seed to what was loaded or made before."""

    def all(self) -> list[Path]:
        """The folders of all reports."""
        study = self.settings.study
        tasks = tasks_of(study, self.item)
        methods = dict.fromkeys(method for task in tasks for method in methods_of(study, task))
        out: list[Path] = []
        for seed in study.seeds:
            for method in methods:
                for task in tasks:
                    if method in methods_of(study, task):
                        out += self._measure(task, method, seed)
        return out

    def crops(self) -> None:
        """Register what devices carry of the first training."""
        study, config = self.settings.study, self.settings.crop
        first = self.made.get(("med", 0, study.seeds[0]))
        if not study.registers or not isinstance(first, Embedding):
            return
        for name, tier in config.tiers.items():
            if tier.dim in first.dims:
                choice = Choice(tier.dim, config.dtype or tier.dtype, name)
                crop_stage(self.runner, first, choice, config)

    def _measure(self, task: StudyTask, method: str, seed: int) -> Iterator[Path]:
        dims = dims_of(self.settings, task, method)
        if task.task == "rank":
            yield from self._rank(method, dims, seed)
            return
        for dim in dims:
            if (stop := self.session.stop) and (number := stop()):
                raise Interrupted("Stopped; the same command goes on from here.", number)
            if method in REFERENCES:
                yield self._reference(method, seed)
            elif task.task == "label":
                yield from self._label(self._vectors(method, dim, seed))
            else:
                yield self._recommend(self._vectors(method, dim, seed))

    def _rank(self, method: str, dims: tuple[int, ...], seed: int) -> Iterator[Path]:
        study = self.settings.study
        for dim in (0,) if method == "med" else dims:  # an embedding is ranked at all its sizes
            source = self.source(method, dim, seed)
            if source.relations is None:
                self.runner.say(f"{method} has no relations: it cannot be ranked.")
                continue
            options = RankOptions(candidates=study.candidates, limit=study.limit)
            ranked = rank_stage(self.runner, self.graph, source, options)
            yield from (path for report, path in ranked if report.dim in dims)

    def _label(self, vectors: Vectors) -> Iterator[Path]:
        for column in self.item.labels or (self.settings.label.column,):
            config = self.settings.label.model_copy(update={"column": column})
            yield label_stage(self.runner, self._inputs(vectors, "labels"), config)[1]

    def _recommend(self, vectors: Vectors) -> Path:
        inputs = self._inputs(vectors, "interactions")
        return recommend_stage(self.runner, inputs, self.settings.recommend)[1]

    def _reference(self, name: str, seed: int) -> Path:
        inputs = self._inputs(no_vectors(name, seed), "interactions")
        return reference_stage(
            self.runner, replace(inputs, seeds=(seed,)), self.settings.recommend
        )[1]

    def _inputs(self, vectors: Vectors, stem: str) -> TaskInputs:
        """What a task reads; another training of the vectors has other seeds."""
        repeats = self.settings.study.repeats
        seeds = tuple(vectors.origin.seed * repeats + i for i in range(repeats))
        table, split = table_file(Path(self.graph.source), stem), None
        if stem == "interactions":
            split = find_split(self.runner.workspace, self.graph, table)
            split = split or split_stage(self.runner, table, self.settings)
        keep = self._is_kept(vectors)
        return TaskInputs(
            vectors,
            table,
            self.graph.name,
            seeds,
            keep_model=keep,
            split=split,
            user_column=self.settings.labels.user,
        )

    def _is_kept(self, vectors: Vectors) -> bool:
        """Whether what these vectors train is registered."""
        study, origin = self.settings.study, vectors.origin
        return study.registers and (origin.method, origin.seed) == ("med", study.seeds[0])

    def _vectors(self, method: str, dim: int, seed: int) -> Vectors:
        if method in CONTROLS:
            return control_vectors(
                method, dim, self.graph, seed, lambda: self._vectors("med", dim, seed)
            )
        return crop_vectors(self.source(method, 0 if method == "med" else dim, seed), dim)

    def source(self, method: str, dim: int, seed: int) -> Embedding | Crop:
        """The embedding of MED (dim 0, it has all sizes) or the crop of a baseline."""
        key = (method, dim, seed)
        if key not in self.made:
            train, baseline = self.settings.train, self.settings.baseline
            session = replace(self.session, seed=seed, resume=True)
            if method == "med":
                self.made[key] = train_stage(self.runner, self.graph, train, session)[0]
            else:
                asked = Baseline(method, dim, baseline, train)
                self.made[key] = baseline_stage(self.runner, self.graph, asked, session)[0]
        return self.made[key]
