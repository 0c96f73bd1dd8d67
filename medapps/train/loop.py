"""Train one croppable embedding: the loop, its validations, checkpoints and figures."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from medapps.arrays import forget
from medapps.crop.embedding import Embedding
from medapps.errors import Interrupted, MedappsError
from medapps.evaluate.filtered_ranking import rank_tables
from medapps.evaluate.link_prediction import mean_mrr
from medapps.graph.graph import Graph
from medapps.model.scorer import make_scorer
from medapps.tracking import NO_RUN, Run
from medapps.train.batches.epoch_order import arrange
from medapps.train.batches.holdout import split_validation
from medapps.train.batches.negatives import sampler_of
from medapps.train.build import make_tables, make_tiers, pick_device, specs_of
from medapps.train.checkpoint import Counters, has_checkpoint
from medapps.train.config import MedConfig
from medapps.train.loss.loss_weight import step_w3
from medapps.train.loss.submodels import Weights
from medapps.train.memory import (
    check_disk,
    check_memory,
    keep_pages,
    needed_bytes,
    needed_disk,
    peak_rss_bytes,
)
from medapps.train.process_group import ALONE, Peers
from medapps.train.step import PHASES, Clock, Step
from medapps.train.tables.bf16 import as_numpy
from medapps.train.tables.mmap import WorkingSet

LOOK = 16
"""The loss is evaluated at every LOOK-th step; its gradient at every step."""


@dataclass(frozen=True)
class Progress:
    """Where a training stands, for a progress bar."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    triples_per_second: float
    seconds_left: float
    part: str = ""
    """Which of several trainings it is, where there are several."""


def train_med(
    graph: Graph,
    config: MedConfig,
    *,
    seed: int = 0,
    run: Run = NO_RUN,
    checkpoint_dir: Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
    peers: Peers = ALONE,
    say: Callable[[str], None] = lambda text: None,
) -> Embedding:
    """Train every prefix of config.dims together; equal seeds give equal tables.

    With `checkpoint_dir` the state is written now and then, and when `stop` says so; `resume`
    continues from it bit for bit on the same number of threads. With `peers` every process holds,
    and returns, only its own rows of the entities.
    """
    if not len(graph.train):
        raise MedappsError("The graph has no training triples.")
    threads = torch.get_num_threads()
    torch.set_num_threads(config.hardware.threads or len(os.sched_getaffinity(0)))
    try:
        with torch.no_grad():
            return _Training(
                graph, config, seed, run, checkpoint_dir, resume, progress, stop, peers, say
            ).run()
    finally:
        torch.set_num_threads(threads)


class _Training:
    """The state of one training."""

    def __init__(
        self,
        graph: Graph,
        config: MedConfig,
        seed: int,
        run: Run,
        folder: Path | None,
        resume: bool,
        progress: Callable[[Progress], None] | None,
        stop: Callable[[], bool] | None,
        peers: Peers,
        say: Callable[[str], None],
    ) -> None:
        keep_pages()
        self.graph, self.config, self.seed, self.track = graph, config, seed, run
        self.folder = None if folder is None else Path(folder)
        self.progress, self.stop, self.peers = progress, stop, peers
        self.train, self.valid = split_validation(graph, config, seed)
        self.scorer = make_scorer(
            config.scorer,
            config.norm,
            from_larger=config.loss.from_larger,
        )
        width = self.scorer.widths(config.dims[-1])[0]
        entities, relations = len(graph.entities), len(graph.relations)
        best_in_memory = config.validation.patience is not None and folder is None
        first, last = peers.shard(entities)
        sizes = last - first, relations, width, len(self.train)
        needed = needed_bytes(*sizes, config, best_in_memory=best_in_memory)
        self.needed = peers.agree(lambda: check_memory(needed, config, peers.neighbours))
        if self.folder is not None:
            writes = needed_disk(*sizes, config)
            peers.agree(partial(check_disk, writes, self.folder, config))
        elif config.hardware.table == "mmap" and config.validation.patience is not None:
            raise MedappsError("A table in a file needs checkpoint_dir to keep its best state.")
        if config.hardware.table == "mmap" and peers.world > 1:
            raise MedappsError("--table mmap and --distributed exclude each other.")
        arranged = arrange(self.train, (entities, relations, width), config, seed, self.folder)
        self.train, self.order = arranged.triples, arranged.order
        if arranged.note:
            say(arranged.note)
        self.tables = make_tables(  # after the index, whose making takes more than it keeps
            config,
            self.scorer,
            last - first,
            relations,
            seed,
            pick_device(config.hardware.device),
            begin=first,
            folder=self.folder,
        )
        mapped = [self.tables.entities, *self.tables.entity_optimiser.state.values()]
        self.working = WorkingSet(mapped) if config.hardware.table == "mmap" else None
        self.clock = Clock()
        weights = Weights.of(config, bounded=self.scorer.bounded)
        self.step = Step(self.scorer, weights, self.tables, clock=self.clock, peers=peers)
        part = peers.rank, peers.world
        self.sampler = sampler_of(
            self.train, entities, config, seed, arranged.known, part, self.order
        )
        self.at = Counters(w3=config.loss.w3)
        self.best: dict[str, Tensor] | None = None
        self.identity = {
            "graph": graph.digest or hashlib.sha256(graph.train.tobytes()).hexdigest(),
            "seed": seed,
            "config": config.plain(),
        }
        if resume and self.folder and any(peers.any(has_checkpoint(self.folder / "last"))):
            self.at = peers.load(self.folder / "last", self._state(), self.identity)
        self.began = perf_counter() - self.at.seconds
        self.saved, self.saving = perf_counter(), 0.0
        self.loss = float("nan")
        self.figures: dict[str, float] = {}
        device = self.tables.entities.device
        self._tiers = lru_cache(maxsize=2)(partial(make_tiers, config, self.scorer, device))

    def run(self) -> Embedding:
        config, at = self.config, self.at
        total = config.epochs * self.sampler.steps
        done = 0
        shown = begun = perf_counter()
        while at.epoch < config.epochs and not self._out_of_patience():
            epoch_began, first = perf_counter(), at.step
            while at.step < self.sampler.steps:
                self._update(total)
                done += 1
                now = perf_counter()
                stop, save = self.peers.any(
                    self.stop is not None and self.stop(),
                    now - self.saved > max(config.hardware.checkpoint_seconds, 20 * self.saving),
                )
                if stop:
                    self._stopped()
                if save:
                    self._save()
                if self.progress is not None and now - shown > 0.1:
                    shown = now
                    self._show(done, now - begun, total)
            seconds = perf_counter() - epoch_began
            self._end_epoch(seconds, len(self.train) - first * config.sampling.batch)
            due = perf_counter() - self.saved > 20 * self.saving
            if at.epoch < config.epochs and any(self.peers.any(due)):  # after it, all is saved
                self._save()
        return self._finish()

    def _update(self, total: int) -> None:
        config, at = self.config, self.at
        self.clock.mark(None)
        if self.working is not None:
            self._move_working_set()
        batch = self.sampler.batch(at.epoch, at.step)
        self.clock.mark("sample")
        learned = config.loss.dlw == "literal"
        value = learned or at.count % LOOK == 0
        lr = config.optimiser.lr * (1 - at.count / total if config.optimiser.decay else 1.0)
        tiers = self._tiers(at.w3 if learned else config.loss.w3)
        ei, ml = self.step(batch, tiers, lr, at.count, value=value)
        if ei is not None:
            loss = float((tiers.models.share[:, 0, 0] * ei).sum() + ml)
            if not np.isfinite(loss):
                raise MedappsError(
                    f"The loss is {loss} at epoch {at.epoch + 1}, step {at.step}.",
                    fix=f"Lower the learning rate: --set train.lr={config.optimiser.lr / 3:.2g}.",
                )
            at.loss_sum, at.loss_count = at.loss_sum + loss, at.loss_count + 1
            self.loss = at.loss_sum / at.loss_count
            if learned:
                at.w3 = step_w3(config.loss.dlw, at.w3, ei, config.dims, config.loss.w3_lr)
        at.step, at.count = at.step + 1, at.count + 1

    def _move_working_set(self) -> None:
        assert self.working is not None
        ranges = self.order.entities(self.at.epoch, self.at.step)
        if ranges != self.working.ranges:
            self.working.move(ranges)
            forget(self.train)
            forget(self.graph.train)

    def _end_epoch(self, seconds: float, triples: int) -> None:
        at, config = self.at, self.config
        at.epoch, at.step = at.epoch + 1, 0
        speed = triples / max(seconds, 1e-9)
        figures = {"loss": self.loss, "triples_per_second": speed}
        figures |= {f"seconds_{phase}": self.clock.seconds[phase] for phase in PHASES}
        if config.loss.dlw != "off":
            figures["w3"] = at.w3
        self.clock.seconds.update(dict.fromkeys(PHASES, 0.0))
        at.loss_sum, at.loss_count = 0.0, 0
        last = at.epoch == config.epochs
        if len(self.valid) and (at.epoch % config.validation.every == 0 or last):
            figures |= self._validate()
        self.track.metrics(figures, at.epoch)
        self.figures = self.figures | figures

    def _validate(self) -> dict[str, float]:
        """MRR of every size on the validation triples; keeps the best state if patience is set."""
        config, at = self.config, self.at
        graph = self.graph
        among = config.validation.candidates
        if self.working is not None:  # every row that is looked at takes its pages
            self.working.clear()
            among = min(among, self.needed // 4 // (4 * self.tables.entities.shape[1] + 2**13))
        sample = len(graph.entities) > among
        ranks = rank_tables(
            self.tables.entities,
            self.tables.relations,
            config.dims,
            specs_of(config),
            self.valid,
            graph.known,
            candidates=among if sample else None,
            seed=self.seed,
            peers=self.peers,
        )
        if self.working is not None:
            self.working.clear()
        mrr = mean_mrr(ranks)
        mean = float(np.mean(list(mrr.values())))
        prefix = "valid_sampled_mrr" if sample else "valid_mrr"
        if mean > at.best_mrr:
            at.best_mrr, at.best_epoch, at.waited = mean, at.epoch, 0
            if config.validation.patience is not None:
                self._keep_best()
        else:
            at.waited += 1
        return {f"{prefix}_{dim}": value for dim, value in mrr.items()} | {prefix: mean}

    def _keep_best(self) -> None:
        tables = {"entities": self.tables.entities, "relations": self.tables.relations}
        if self.folder is not None:
            self.peers.save(self.folder / "best", tables, self.at, self.identity)
        elif self.best is None:
            self.best = {name: table.clone() for name, table in tables.items()}
        else:
            for name, table in tables.items():
                self.best[name].copy_(table)

    def _out_of_patience(self) -> bool:
        return (
            self.config.validation.patience is not None
            and self.at.waited >= self.config.validation.patience
        )

    def _state(self) -> dict[str, Tensor]:
        tables = self.tables
        state = {"entities": tables.entities, "relations": tables.relations}
        for name, optimiser in (
            ("entity", tables.entity_optimiser),
            ("relation", tables.relation_optimiser),
        ):
            state |= {f"{name}_{key}": value for key, value in optimiser.state.items()}
        return state

    def _save(self) -> None:
        if self.folder is None:
            return
        began = perf_counter()
        self.at.seconds = began - self.began
        self.peers.save(self.folder / "last", self._state(), self.at, self.identity)
        self.saved = perf_counter()
        self.saving = self.saved - began

    def _stopped(self) -> None:
        self._save()
        raise Interrupted(f"Stopped in epoch {self.at.epoch + 1}, step {self.at.step}.")

    def _show(self, done: int, seconds: float, total: int) -> None:
        assert self.progress is not None
        at, config = self.at, self.config
        speed = done / max(seconds, 1e-9)
        self.progress(
            Progress(
                epoch=at.epoch + 1,
                epochs=config.epochs,
                step=at.step,
                steps=self.sampler.steps,
                loss=self.loss,
                triples_per_second=speed * config.sampling.batch,
                seconds_left=(total - at.count) / speed,
            )
        )

    def _finish(self) -> Embedding:
        config, at, graph = self.config, self.at, self.graph
        tables = {"entities": self.tables.entities, "relations": self.tables.relations}
        if config.validation.patience is not None and at.best_epoch:
            if self.folder is not None:
                self.peers.load(self.folder / "best", tables, self.identity)
            elif self.best is not None:
                tables = self.best
        at.seconds = perf_counter() - self.began
        metrics = self.figures | {
            "train_seconds": at.seconds,
            "epochs": float(at.epoch),
            "peak_rss_bytes": float(peak_rss_bytes()),
            "needed_bytes": float(self.needed),
        }
        if len(self.valid):
            metrics |= {"best_valid_mrr": at.best_mrr, "best_epoch": float(at.best_epoch)}
        logged = ("train_seconds", "peak_rss_bytes")
        self.track.metrics({name: metrics[name] for name in logged}, at.epoch)
        return Embedding(
            entities=as_numpy(tables["entities"]),
            relations=tables["relations"].cpu().numpy(),
            dims=config.dims,
            specs=specs_of(config),
            entity_ids=graph.entities,
            relation_ids=graph.relations,
            users=np.asarray(graph.users),
            graph_digest=graph.digest,
            metrics=metrics,
            about={"data": graph.name, "source": graph.source, "seed": self.seed},
        )
