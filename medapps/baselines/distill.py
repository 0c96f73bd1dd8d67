"""The loop of every distillation: the batches of a direct training, seen by student and teacher."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from medapps.baselines.losses import Loss, Seen
from medapps.baselines.player import Player, fresh, known, masked_of
from medapps.crop.crop import Crop
from medapps.errors import Interrupted, MedappsError
from medapps.graph.graph import Graph, KnownTriples
from medapps.model.rules import RULES
from medapps.tracking import Run
from medapps.train.batches.holdout import split_validation
from medapps.train.batches.negatives import sampler_of
from medapps.train.checkpoint import Counters, has_checkpoint, load_checkpoint, save_checkpoint
from medapps.train.config import MedConfig
from medapps.train.loop import Progress
from medapps.train.memory import check_memory, keep_pages, needed_bytes

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
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    """What the loss itself learns, by name."""


@dataclass(frozen=True)
class Watch:
    """Who is told how a training goes, and who may stop it."""

    run: Run
    progress: Callable[[Progress], None] | None = None
    stop: Callable[[], int] | None = None
    folder: Path | None = None
    """Where a state to go on from is kept."""
    searches: Path | None = None
    """Where the trials of searches are kept."""

    def asked(self) -> bool:
        """Has someone asked to stop?"""
        return self.stop is not None and bool(self.stop())


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
    seed; each phase decays to zero. With watch.folder the state is kept there now and then, and a
    training that was cut off goes on from it.
    """
    if teacher.entity_ids != graph.entities or teacher.relations is None:
        raise MedappsError(
            "The teacher does not cover the entities and relations of this graph.",
            fix="Train a teacher on it: medapps baseline dt --dim N --kg PATH.",
        )
    keep_pages()
    threads = torch.get_num_threads()
    torch.set_num_threads(config.hardware.threads or len(os.sched_getaffinity(0)))
    try:
        with torch.no_grad():
            loop = _Loop(graph, teacher, config, phases, seed, watch)
            for phase in phases:
                loop.run(phase)
    finally:
        torch.set_num_threads(threads)
    tables = loop.student.tables
    return Learned(
        tables.entities.numpy(), tables.relations.numpy(), loop.student, loop.seconds, loop.loss
    )


class _Loop:
    """Goes through the phases step by step."""

    def __init__(
        self,
        graph: Graph,
        teacher: Crop,
        config: MedConfig,
        phases: Sequence[Phase],
        seed: int,
        watch: Watch,
    ) -> None:
        self.config, self.phases, self.watch = config, phases, watch
        self.epochs = sum(phase.epochs for phase in phases)
        self.both = any(phase.both for phase in phases)
        entities, relations = len(graph.entities), len(graph.relations)
        train, _ = split_validation(graph, config, seed)
        width = config.dims[-1] * RULES[config.scorer].REALS[0]
        needed = needed_bytes(entities, relations, width, len(train), config, best_in_memory=False)
        check_memory(needed | {"teacher": teacher.nbytes if self.both else 0}, config)
        index = KnownTriples.of(train, entities) if config.sampling.filter_known else None
        self.sampler = sampler_of(train, entities, config, seed, index)
        self.student = fresh(config, entities, relations, seed)
        self.teacher = known(teacher, config, learns=self.both)
        self.at = Counters()
        self.identity = {
            "graph": graph.digest,
            "seed": seed,
            "config": config.plain() | {"phases": [[p.epochs, p.rate, p.both] for p in phases]},
        }
        if watch.folder is not None and has_checkpoint(watch.folder):
            self.at = load_checkpoint(watch.folder, self._state(), self.identity)
        self.began = self.shown = self.saved = perf_counter()
        self.before = self.at.seconds
        self.first = self.at.count

    @property
    def seconds(self) -> float:
        """Time spent so far, over all parts of a training that was cut off."""
        return self.before + perf_counter() - self.began

    @property
    def loss(self) -> float:
        return self.at.loss_sum / max(1, self.at.loss_count)

    def run(self, phase: Phase) -> None:
        """What is left of one phase."""
        at, steps = self.at, self.sampler.steps
        start = sum(earlier.epochs for earlier in self.phases[: self.phases.index(phase)])
        total = phase.epochs * steps
        look = min(steps, max(1, total // 4)) if phase.both else 0
        while start <= at.epoch < start + phase.epochs:
            while at.step < steps:
                if at.step == 0:
                    at.loss_sum, at.loss_count = 0.0, 0
                now = (at.epoch - start) * steps + at.step
                if phase.both and now == look:
                    self._settle(self.config.epochs * steps / look)
                value = self._update(phase, now / total, still=now < look)
                if at.step % LOOK == 0:
                    at.loss_sum += self._checked(float(value))
                    at.loss_count += 1
                at.step, at.count = at.step + 1, at.count + 1
                self._tell()
            at.epoch, at.step = at.epoch + 1, 0
            self.watch.run.metric("loss", self.loss, at.epoch)

    def _update(self, phase: Phase, done: float, *, still: bool) -> torch.Tensor:
        """One step of the student and, unless it stands still, of a teacher that learns."""
        config, at = self.config, self.at
        batch = self.sampler.batch(at.epoch, at.step)
        masked = masked_of(batch)
        view, shown = self.student.look(batch, masked), self.teacher.look(batch, masked)
        seen = Seen(self.student, view, self.teacher, shown, masked, done)
        value, pull, other = phase.loss(seen)
        lr = config.optimiser.lr * phase.rate * (1 - done if config.optimiser.decay else 1.0)
        self.student.learn(view, pull.positive, pull.negative, lr, at.count, pull.ends)
        if other is not None:
            rate = 0.0 if still else lr
            self.teacher.learn(shown, other.positive, other.negative, rate, at.count, other.ends)
        return value

    def _settle(self, factor: float) -> None:
        """Give the teacher's Adagrad, after some steps of looking on, the weight of a training.

        A trained model comes without its optimiser's state; with an empty one its first steps would
        be as long as those of an untrained model.
        """
        tables = self.teacher.tables
        for optimiser in (tables.entity_optimiser, tables.relation_optimiser):
            if "square" in optimiser.state:
                optimiser.state["square"].mul_(factor)

    def _checked(self, loss: float) -> float:
        if np.isfinite(loss):
            return loss
        raise MedappsError(
            f"The student's loss is {loss} in epoch {self.at.epoch + 1}.",
            fix=f"Lower the learning rate: --set train.lr={self.config.optimiser.lr / 3:.2g}.",
        )

    def _tell(self) -> None:
        """Look for a signal to stop, keep the state, and show progress."""
        watch, at, now = self.watch, self.at, perf_counter()
        if watch.stop is not None and (number := watch.stop()):
            self._save()
            raise Interrupted(f"Stopped in epoch {at.epoch + 1}, step {at.step}.", int(number))
        if now - self.saved > self.config.hardware.checkpoint_seconds:
            self._save()
        if watch.progress is None or now - self.shown < 0.1:
            return
        self.shown = now
        speed = (at.count - self.first) / (now - self.began)
        watch.progress(
            Progress(
                epoch=at.epoch + 1,
                epochs=self.epochs,
                step=at.step,
                steps=self.sampler.steps,
                loss=self.loss,
                triples_per_second=speed * self.config.sampling.batch,
                seconds_left=(self.epochs * self.sampler.steps - at.count) / speed,
            )
        )

    def _save(self) -> None:
        if self.watch.folder is None:
            return
        self.at.seconds = self.seconds
        save_checkpoint(self.watch.folder, self._state(), self.at, self.identity)
        self.saved = perf_counter()

    def _state(self) -> dict[str, torch.Tensor]:
        state = self.student.state("student") | (self.teacher.state("teacher") if self.both else {})
        for phase in self.phases:
            state |= phase.state
        return state
