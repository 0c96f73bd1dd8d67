"""All tasks of a study on one data set, as stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from medapps.crop.crop import Crop
from medapps.crop.embedding import Embedding
from medapps.errors import Interrupted
from medapps.graph.graph import Graph
from medapps.graph.side_tables import table_file
from medapps.settings import Settings
from medapps.stages import (
    Bench,
    Vectors,
    baseline_stage,
    control_vectors,
    crop_vectors,
    label_stage,
    rank_stage,
    recommend_stage,
    reference_stage,
    train_stage,
)
from medapps.study.config import CONTROLS, REFERENCES, StudyData, StudyTask
from medapps.study.plan import dims_of, methods_of, tasks_of

if TYPE_CHECKING:
    from medapps.train.session import Progress


@dataclass(frozen=True)
class Measuring:
    """Makes vectors and measures them, method by method, so that results appear early."""

    bench: Bench
    settings: Settings
    item: StudyData
    graph: Graph
    progress: Callable[[Progress], None] | None = None
    stop: Callable[[], int] | None = None
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

    def _measure(self, task: StudyTask, method: str, seed: int) -> Iterator[Path]:
        dims = dims_of(self.settings, task, method)
        if task.task == "rank":
            yield from self._rank(method, dims, seed)
            return
        for dim in dims:
            self._go_on()
            if method in REFERENCES:
                yield self._refer(method, seed)
                continue
            vectors = self._vectors(method, dim, seed)
            yield from self._label(vectors) if task.task == "label" else self._recommend(vectors)

    def _rank(self, method: str, dims: tuple[int, ...], seed: int) -> Iterator[Path]:
        made: list[Embedding | Crop] = (
            [self._embedding(seed)]
            if method == "med"
            else [self._crop(method, dim, seed) for dim in dims]
        )
        study = self.settings.study
        for source in made:
            if source.relations is None:
                self.bench.say(f"{method} has no relations: it cannot be ranked.")
                continue
            ranked = rank_stage(
                self.bench, self.graph, source, candidates=study.candidates, limit=study.limit
            )
            yield from (path for report, path in ranked if report.dim in dims)

    def _label(self, vectors: Vectors) -> Iterator[Path]:
        labels = table_file(Path(self.graph.source), "labels")
        for column in self.item.labels or (self.settings.label.column,):
            config = self.settings.label.model_copy(update={"column": column})
            yield label_stage(
                self.bench,
                vectors,
                labels,
                config,
                data=self.graph.name,
                seeds=self._seeds(vectors),
                keep_model=False,
            )[1]

    def _recommend(self, vectors: Vectors) -> Iterator[Path]:
        yield recommend_stage(
            self.bench,
            vectors,
            table_file(Path(self.graph.source), "interactions"),
            self.settings.recommend,
            data=self.graph.name,
            seeds=self._seeds(vectors),
            keep_model=False,
        )[1]

    def _refer(self, name: str, seed: int) -> Path:
        return reference_stage(
            self.bench,
            name,
            table_file(Path(self.graph.source), "interactions"),
            self.settings.recommend,
            data=self.graph.name,
            seed=seed,
        )[1]

    def _seeds(self, vectors: Vectors) -> tuple[int, ...]:
        """Seeds of the task: those of another training are others."""
        repeats = self.settings.study.repeats
        return tuple(vectors.origin.seed * repeats + i for i in range(repeats))

    def _vectors(self, method: str, dim: int, seed: int) -> Vectors:
        if method in CONTROLS:
            return control_vectors(
                method, dim, self.graph, seed, lambda: self._vectors("med", dim, seed)
            )
        if method == "med":
            return crop_vectors(self._embedding(seed), dim)
        return crop_vectors(self._crop(method, dim, seed), dim)

    def _embedding(self, seed: int) -> Embedding:
        key = ("med", 0, seed)
        if key not in self.made:
            self.made[key] = train_stage(
                self.bench,
                self.graph,
                self.settings.train,
                seed=seed,
                resume=True,
                progress=self.progress,
                stop=self.stop,
            )[0]
        made = self.made[key]
        assert isinstance(made, Embedding)
        return made

    def _crop(self, method: str, dim: int, seed: int) -> Crop:
        key = (method, dim, seed)
        if key not in self.made:
            self.made[key] = baseline_stage(
                self.bench,
                self.graph,
                method,
                dim,
                self.settings.baseline,
                self.settings.train,
                seed=seed,
                progress=self.progress,
                stop=self.stop,
            )[0]
        made = self.made[key]
        assert isinstance(made, Crop)
        return made

    def _go_on(self) -> None:
        """Stop between two stages if a signal asked for it."""
        if self.stop is not None and (number := self.stop()):
            raise Interrupted("Stopped; the same command goes on from here.", number)
