"""The loop of every training: epochs of steps, checkpoints and resume, progress and stop."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from medapps.crop.quantize import broken_row
from medapps.errors import Interrupted, MedappsError
from medapps.graph.graph import Graph
from medapps.train.batches import Sampler
from medapps.train.checkpoint import Counters, has_checkpoint
from medapps.train.config import MedConfig
from medapps.train.memory import keep_pages
from medapps.train.process_group import SINGLE, ProcessGroup
from medapps.train.session import Progress, Session
from medapps.train.tables import as_numpy

LOOK = 16
"""The loss is evaluated at every LOOK-th step; its gradient at every step."""


TABLES = ("entities", "relations")
"""How the names of tables end in a task's state."""


class Diverged(MedappsError):
    """Loss or vectors are no longer finite."""


class Task(Protocol):
    """What is trained."""

    @property
    def sampler(self) -> Sampler:
        """Draws the batches."""

    @property
    def epochs(self) -> int:
        """How many there are at most."""

    def state(self) -> dict[str, Tensor]:
        """All that a checkpoint holds besides the counters."""

    def update(self, at: Counters) -> float | None:
        """One step; the loss, where it was evaluated."""

    def end_epoch(self, at: Counters) -> dict[str, float]:
        """Figures of the epoch that just ended."""

    def finished(self, at: Counters) -> bool:
        """Is it over before the last epoch?"""


@contextmanager
def arithmetic(config: MedConfig) -> Iterator[None]:
    """The threads that a training asks for, its memory kept, no gradients recorded."""
    keep_pages()
    threads = torch.get_num_threads()
    torch.set_num_threads(config.hardware.threads or len(os.sched_getaffinity(0)))
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(threads)


def identity_of(graph: Graph, config: MedConfig, seed: int, **more: Any) -> dict[str, Any]:
    """What a checkpoint must agree with."""
    return {
        "graph": graph.digest or hashlib.sha256(graph.train.tobytes()).hexdigest(),
        "seed": seed,
        "config": config.plain() | more,
    }


class Loop:
    """Trains a task to its end, or to a stop that a resume continues from bit for bit."""

    def __init__(
        self,
        task: Task,
        config: MedConfig,
        session: Session,
        identity: dict[str, Any],
        group: ProcessGroup = SINGLE,
    ) -> None:
        self.task, self.config, self.session = task, config, session
        self.identity, self.group = identity, group
        self.at = Counters(w3=config.loss.w3)
        folder = session.checkpoint_dir
        self.folder = None if folder is None else Path(folder)
        if session.resume and self.folder and any(group.any(has_checkpoint(self.folder / "last"))):
            self.at = group.load(self.folder / "last", task.state(), identity)
        self.began = perf_counter() - self.at.seconds
        self.saved, self.saving = perf_counter(), 0.0
        self.figures: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """Time spent so far, over all parts of a training that was interrupted."""
        return perf_counter() - self.began

    def run(self) -> dict[str, float]:
        """Everything that is left; the figures of the last epoch."""
        task, at = self.task, self.at
        steps, limit = task.sampler.steps, self.config.hardware.checkpoint_seconds
        done, shown = 0, perf_counter()
        begun = shown
        while at.epoch < task.epochs and not task.finished(at):
            epoch_began, first = perf_counter(), at.step
            while at.step < steps:
                self._count(task.update(at))
                at.step, at.count, done = at.step + 1, at.count + 1, done + 1
                now = perf_counter()
                signal = self.session.stop() if self.session.stop is not None else 0
                due = now - self.saved > max(limit, 20 * self.saving)
                stop, save = self.group.any(bool(signal), due)
                if stop:
                    self._interrupt(int(signal))
                if save:
                    self.save()
                if self.session.progress is not None and now - shown > 0.1:
                    shown = now
                    self._show(done / max(now - begun, 1e-9))
            self._end_epoch(perf_counter() - epoch_began, first)
            due = perf_counter() - self.saved > 20 * self.saving
            if at.epoch < task.epochs and any(self.group.any(due)):  # after it, all is saved
                self.save()
        at.seconds = self.seconds
        return self.figures

    @property
    def loss(self) -> float:
        """Mean of the losses that were evaluated in this epoch."""
        return self.at.loss_sum / self.at.loss_count if self.at.loss_count else float("nan")

    def _count(self, loss: float | None) -> None:
        at = self.at
        if at.step == 0:
            at.loss_sum, at.loss_count = 0.0, 0
        if loss is None:
            return
        if not np.isfinite(loss):
            self._diverged(f"The loss is {loss} at epoch {at.epoch + 1}, step {at.step}.")
        at.loss_sum, at.loss_count = at.loss_sum + loss, at.loss_count + 1

    def _diverged(self, problem: str) -> NoReturn:
        lower = f"--set train.lr={self.config.optimiser.lr / 3:.2g}"
        raise Diverged(problem, fix=f"Lower the learning rate: {lower}.")

    def _refuse_broken(self) -> None:
        """End a training whose tables are not finite; the loss is looked at too rarely for that."""
        tables = [t for name, t in self.task.state().items() if name.endswith(TABLES)]
        broken = any(broken_row(as_numpy(table)) is not None for table in tables)
        if any(self.group.any(broken)):
            where = f"in epoch {self.at.epoch}"
            self._diverged(f"The training diverged: vectors are not finite {where}.")

    def _end_epoch(self, seconds: float, first: int) -> None:
        at = self.at
        at.epoch, at.step = at.epoch + 1, 0
        self._refuse_broken()
        triples = len(self.task.sampler.triples) - first * self.config.sampling.batch
        figures = {"triples_per_second": triples / max(seconds, 1e-9)}
        if at.loss_count:
            figures["loss"] = self.loss
        figures |= self.task.end_epoch(at)
        self.session.run.metrics(figures, at.epoch)
        self.figures = self.figures | figures

    def save(self) -> None:
        """Replace the checkpoint by the state of now, if there is a place for it."""
        if self.folder is None:
            return
        began = perf_counter()
        self.at.seconds = began - self.began
        self.group.save(self.folder / "last", self.task.state(), self.at, self.identity)
        self.saved = perf_counter()
        self.saving = self.saved - began

    def _interrupt(self, signal: int) -> NoReturn:
        self.save()
        where = f"Stopped in epoch {self.at.epoch + 1}, step {self.at.step}."
        raise Interrupted(where, signal) if signal > 1 else Interrupted(where)

    def _show(self, speed: float) -> None:
        assert self.session.progress is not None
        at, steps = self.at, self.task.sampler.steps
        self.session.progress(
            Progress(
                epoch=at.epoch + 1,
                epochs=self.task.epochs,
                step=at.step,
                steps=steps,
                loss=self.loss,
                triples_per_second=speed * self.config.sampling.batch,
                seconds_left=(self.task.epochs * steps - at.count) / speed,
            )
        )
