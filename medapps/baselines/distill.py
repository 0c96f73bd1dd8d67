"""The loop of every distillation: the batches of a direct training, seen by student and teacher."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from medapps.baselines.losses import Loss, Seen
from medapps.baselines.player import Player, fresh, known, masked_of
from medapps.crop.crop import Crop
from medapps.embed.config import MedConfig
from medapps.embed.memory import check_memory, keep_pages, needed_bytes
from medapps.embed.negatives import Sampler, sampler_of
from medapps.embed.train import Progress, split_validation
from medapps.errors import Interrupted, MedappsError
from medapps.graph.graph import Graph, KnownTriples
from medapps.tracking import Run

LOOK = 8
"""The loss is read at every LOOK-th step."""


@dataclass(frozen=True)
class Phase:
    """Some epochs with one loss."""

    epochs: int
    loss: Loss
    rate: float = 1.0
    """Learning rate at its start, as a part of the config's."""
    both: bool = False
    """The teacher learns too, on a copy."""


@dataclass(frozen=True)
class Watch:
    """Who is told how a training goes, and who may stop it."""

    run: Run
    progress: Callable[[Progress], None] | None = None
    stop: Callable[[], int] | None = None


@dataclass(frozen=True)
class Learned:
    """The tables of a distilled student."""

    entities: np.ndarray
    relations: np.ndarray
    student: Player
    seconds: float
    loss: float


def distill(
    graph: Graph,
    teacher: Crop,
    config: MedConfig,
    phases: Sequence[Phase],
    *,
    seed: int,
    watch: Watch,
) -> Learned:
    """Train a student of config.dims[-1], from random start values, under a teacher.

    Batches, negatives, optimiser and decay are those of a direct training with the same config and
    seed; each phase decays to zero.
    """
    began = perf_counter()
    if teacher.entity_ids != graph.entities or teacher.relations is None:
        raise MedappsError(
            "The teacher does not cover the entities and relations of this graph.",
            fix="Train a teacher on it: medapps baseline dt --dim N --kg PATH.",
        )
    keep_pages()
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads or len(os.sched_getaffinity(0)))
    try:
        with torch.no_grad():
            train, _ = split_validation(graph, config, seed)
            _check_memory(graph, teacher, config, len(train), any(p.both for p in phases))
            index = KnownTriples.of(train, len(graph.entities)) if config.filter_known else None
            sampler = sampler_of(train, len(graph.entities), config, seed, index)
            student = fresh(config, len(graph.entities), len(graph.relations), seed)
            shown = known(teacher, config, learns=any(phase.both for phase in phases))
            loop = _Loop(sampler, student, shown, config, watch, sum(p.epochs for p in phases))
            for phase in phases:
                loop.run(phase)
    finally:
        torch.set_num_threads(threads)
    tables = student.tables
    return Learned(
        tables.entities.numpy(),
        tables.relations.numpy(),
        student,
        perf_counter() - began,
        loop.loss,
    )


def _check_memory(graph: Graph, teacher: Crop, config: MedConfig, triples: int, both: bool) -> None:
    needed = needed_bytes(
        len(graph.entities), len(graph.relations), config.dims[-1], triples, config,
        best_in_memory=False,
    )  # fmt: skip
    check_memory(needed | {"teacher": teacher.nbytes if both else 0}, config)


class _Loop:
    """Counts epochs and steps through the phases."""

    def __init__(
        self,
        sampler: Sampler,
        student: Player,
        teacher: Player,
        config: MedConfig,
        watch: Watch,
        epochs: int,
    ) -> None:
        self.sampler, self.student, self.teacher = sampler, student, teacher
        self.config, self.watch, self.epochs = config, watch, epochs
        self.epoch = self.count = 0
        self.loss = float("nan")
        self.began = self.shown = perf_counter()

    def run(self, phase: Phase) -> None:
        """All steps of one phase."""
        steps = self.sampler.steps
        for epoch in range(phase.epochs):
            values = []
            for step in range(steps):
                done = (epoch * steps + step) / (phase.epochs * steps)
                still = phase.both and epoch == 0 and phase.epochs > 1
                value = self._update(phase, step, done, still)
                if self.count % LOOK == 0:
                    values.append(self._checked(float(value)))
                    self.loss = float(np.mean(values))
                self.count += 1
                self._tell(step, steps)
            if phase.both and epoch == 0 and phase.epochs > 1:
                self._settle()
            self.epoch += 1
            self.watch.run.metric("loss", self.loss, self.epoch)

    def _update(self, phase: Phase, step: int, done: float, still: bool) -> torch.Tensor:
        """One step of the student and, unless it stands still, of a teacher that learns."""
        config = self.config
        batch = self.sampler.batch(self.epoch, step)
        masked = masked_of(batch)
        view, shown = self.student.look(batch, masked), self.teacher.look(batch, masked)
        weight = None if batch.weight is None else torch.from_numpy(batch.weight)
        seen = Seen(self.student, view, self.teacher, shown, masked, weight, done)
        value, pull, other = phase.loss(seen)
        lr = config.lr * phase.rate * (1 - done if config.decay else 1.0)
        self.student.learn(view, pull.positive, pull.negative, lr, self.count, pull.ends)
        if other is not None:
            assert phase.both
            rate = 0.0 if still else lr
            self.teacher.learn(shown, other.positive, other.negative, rate, self.count, other.ends)
        return value

    def _settle(self) -> None:
        """Give the teacher's Adagrad, after an epoch of looking on, the weight of a whole training.

        A trained model comes without its optimiser's state; with an empty one its first steps would
        be as long as those of an untrained model.
        """
        for optimiser in (
            self.teacher.tables.entity_optimiser,
            self.teacher.tables.relation_optimiser,
        ):
            if "square" in optimiser.state:
                optimiser.state["square"].mul_(self.config.epochs)

    def _checked(self, loss: float) -> float:
        if np.isfinite(loss):
            return loss
        raise MedappsError(
            f"The student's loss is {loss} in epoch {self.epoch + 1}.",
            fix=f"Lower the learning rate: --set train.lr={self.config.lr / 3:.2g}.",
        )

    def _tell(self, step: int, steps: int) -> None:
        if self.watch.stop is not None and (number := self.watch.stop()):
            raise Interrupted(f"Stopped in epoch {self.epoch + 1}.", int(number))
        now = perf_counter()
        if self.watch.progress is None or now - self.shown < 0.1:
            return
        self.shown = now
        speed = self.count / (now - self.began)
        self.watch.progress(
            Progress(
                epoch=self.epoch + 1,
                epochs=self.epochs,
                step=step + 1,
                steps=steps,
                loss=self.loss,
                triples_per_second=speed * self.config.batch,
                seconds_left=(self.epochs * steps - self.count) / speed,
            )
        )
