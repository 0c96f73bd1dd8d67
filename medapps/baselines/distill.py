"""Distillation: the batches of a direct training, scored by student and teacher.

    hard     the loss of a direct training: softplus(-s+) + sum_k w_k softplus(s-_k)
    kd       a hard + b T^2 KL(p_T || p_S),  p = softmax over {positive, negatives} of s / T
             d/ds_S = b T (p_S - p_T)                              bkd: a = 1; ta: a = 1 - b
    huber    hard + b [mean_pos H(s_S - s_T) + mean_neg H(s_S - s_T)]                     (iterde)

All are means over the positives of a batch. Gradients are with respect to the student's distances:
s = margin - scale D. Student and teacher are models with a single prefix on engines of their own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from medapps.crop.crop import Crop
from medapps.errors import MedappsError
from medapps.graph.graph import Graph, KnownTriples
from medapps.model.rules import make_scorer
from medapps.train.batches import Batch, sampler_of
from medapps.train.checkpoint import Counters
from medapps.train.config import MedConfig
from medapps.train.loop import LOOK, Loop, arithmetic, identity_of
from medapps.train.loss.med import FAR, PositiveSlice, SubModels, Weights, pairs, positives
from medapps.train.memory import Sizes, check_memory, needed_bytes
from medapps.train.order import split_validation
from medapps.train.session import Session
from medapps.train.step import BatchScores, Block, Engine, Model, new_model, pick_device
from medapps.train.tables import make_optimiser

AT_ONCE = 2**24
"""Numbers gathered at a time for negatives that are not shared."""


@dataclass(frozen=True)
class Seen:
    """What a loss looks at: both models on one batch."""

    student: BatchScores
    teacher: BatchScores
    masked: Tensor
    """int64: flat positions in (B, N) that are no negatives."""
    done: float
    """Fraction of the phase that is over."""


@dataclass(frozen=True)
class Gradients:
    """Of one model: distances (B,) and (B, N), and perhaps source and target rows."""

    positive: Tensor
    negative: Tensor
    ends: tuple[Tensor, Tensor] | None = None


Loss = Callable[[Seen], tuple[Tensor, Gradients, Gradients | None]]
"""Value, the student's gradients, and the teacher's if it learns too."""


@dataclass(frozen=True)
class Phase:
    """Some epochs with one loss."""

    epochs: int
    loss: Loss
    rate: float = 1.0
    """Learning rate at its start, as a fraction of the config's."""
    both: bool = False
    """The teacher learns too, on a copy."""
    state: dict[str, Tensor] = field(default_factory=dict)
    """What the loss itself learns, by name."""


@dataclass(frozen=True)
class Learned:
    """A distilled student."""

    student: Model
    teacher: Model
    seconds: float
    loss: float


def distill(
    graph: Graph, teacher: Crop, config: MedConfig, phases: Sequence[Phase], session: Session
) -> Learned:
    """Train a student of config.dims[-1], from random initial values, under a teacher.

    Batches, negatives, optimiser and decay are those of a direct training with the same config and
    seed; each phase decays to zero. A training that was interrupted is resumed.
    """
    if teacher.entity_ids != graph.entities or teacher.relations is None:
        raise MedappsError(
            "The teacher does not cover the entities and relations of this graph.",
            fix="Train a teacher on it: medapps baseline dt --dim N --kg PATH.",
        )
    with arithmetic(config):
        task = StudentTask(graph, teacher, config, phases, session.seed)
        described = [[phase.epochs, phase.rate, phase.both] for phase in phases]
        identity = identity_of(graph, config, session.seed, phases=described)
        loop = Loop(task, config, session, identity)
        loop.run()
    return Learned(task.student.model, task.teacher.model, loop.at.seconds, loop.loss)


class StudentTask:
    """A student under a teacher, phase after phase."""

    def __init__(
        self,
        graph: Graph,
        teacher: Crop,
        config: MedConfig,
        phases: Sequence[Phase],
        seed: int,
    ) -> None:
        self.config, self.phases = config, phases
        self.epochs = sum(phase.epochs for phase in phases)
        self.both = any(phase.both for phase in phases)
        entities, relations = len(graph.entities), len(graph.relations)
        train, _ = split_validation(graph, config, seed)
        needed = needed_bytes(Sizes(entities, relations, len(train), config), best_in_memory=False)
        check_memory(needed | {"teacher": teacher.nbytes if self.both else 0}, config)
        known = KnownTriples.of(train, entities) if config.sampling.filter_known else None
        self.sampler = sampler_of(train, entities, config, seed, known)
        self.student = Engine(new_model(config, entities, relations, seed))
        self.teacher = Engine(teacher_model(teacher, config, learns=self.both))

    def state(self) -> dict[str, Tensor]:
        """Of the student and, if it learns, the teacher; and what the losses learn."""
        out = {f"student_{key}": value for key, value in self.student.model.state().items()}
        if self.both:
            out |= {f"teacher_{key}": value for key, value in self.teacher.model.state().items()}
        for phase in self.phases:
            out |= phase.state
        return out

    def finished(self, at: Counters) -> bool:
        return False

    def end_epoch(self, at: Counters) -> dict[str, float]:
        return {}

    def update(self, at: Counters) -> float | None:
        """One step of the student and, unless it only looks on, of a teacher that learns."""
        config, steps, start = self.config, self.sampler.steps, 0
        for phase in self.phases:
            if at.epoch < start + phase.epochs:
                break
            start += phase.epochs
        now, total = (at.epoch - start) * steps + at.step, phase.epochs * steps
        looks_on = min(steps, max(1, total // 4)) if phase.both else 0
        if phase.both and now == looks_on:
            self._settle(config.epochs * steps / looks_on)
        batch = self.sampler.batch(at.epoch, at.step)
        masked = masked_of(batch).to(self.student.model.device)
        mine = forward_all(self.student, batch, masked, drop=True)
        theirs = forward_all(self.teacher, batch, masked, drop=False)
        value, grads, other = phase.loss(Seen(mine, theirs, masked, now / total))
        lr = config.optimiser.lr * phase.rate
        lr *= 1 - now / total if config.optimiser.decay else 1.0
        learn(self.student, mine, grads, config.loss.penalty)
        self.student.apply(mine, lr, at.count)
        if other is not None:
            learn(self.teacher, theirs, other, 0.0)
            self.teacher.apply(theirs, 0.0 if now < looks_on else lr, at.count)
        return float(value) if at.count % LOOK == 0 else None

    def _settle(self, factor: float) -> None:
        """Give the teacher's Adagrad, after some steps of looking on, the weight of a training.

        A trained model comes without its optimiser's state; with an empty one its first steps would
        be as long as those of an untrained model.
        """
        for name, state in self.teacher.model.state().items():
            if name.endswith("_square"):
                state.mul_(factor)


def forward_all(engine: Engine, batch: Batch, masked: Tensor, *, drop: bool) -> BatchScores:
    """Distances of the positives and all negatives of a batch; `masked` are flat in (B, N)."""
    scores = engine.forward(batch, drop=drop)
    shape = len(engine.model.dims), len(batch.source), batch.chunks[0].negatives.shape[-1]
    scores.negative = negative = engine.buffer("negative", shape)
    for block in _blocks(engine, scores):
        out = negative[:, block.part]
        distance, _ = engine.score(scores, block, out)
        if distance is not out:
            out.copy_(distance)
    negative.view(-1)[masked] = FAR
    return scores


def learn(engine: Engine, scores: BatchScores, grads: Gradients, penalty: float) -> None:
    """All gradients of a batch from those of its distances, which are overwritten."""
    assert scores.negative is not None
    engine.start_backward(scores)
    engine.backward_positives(scores, grads.positive[None])
    for block in _blocks(engine, scores):
        distance, saved = scores.negative[:, block.part], None
        if scores.slots is not None:
            _, saved = engine.score(scores, block, distance)
        engine.backward(scores, block, grads.negative[None, block.part], distance, saved)
    engine.backward_queries(scores)
    if penalty:
        engine.penalise(scores, penalty, value=False)
    if grads.ends is not None:
        b = len(scores.query)
        scores.drows[:b] += grads.ends[0]
        scores.drows[b : 2 * b] += grads.ends[1]


def _blocks(engine: Engine, scores: BatchScores) -> list[Block]:
    """Whole chunks, or a bounded number of positives where each has its own negatives."""
    most = len(scores.query)
    if scores.slots is not None:
        count = scores.batch.chunks[0].negatives.shape[1]
        most = max(1, AT_ONCE // (count * scores.rows.shape[1]))
    return list(engine.blocks(scores, most))


def masked_of(batch: Batch) -> Tensor:
    """int64: flat positions in (B, N) of negatives that do not count."""
    count = batch.chunks[0].negatives.shape[-1]
    return torch.from_numpy(np.concatenate([c.masked + c.start * count for c in batch.chunks]))


def teacher_model(crop: Crop, config: MedConfig, *, learns: bool) -> Model:
    """A trained crop as a model; one that learns works on a copy."""
    scorer, device = (
        make_scorer(crop.spec.scorer, crop.spec.norm),
        pick_device(config.hardware.device),
    )
    assert crop.relations is not None
    with warnings.catch_warnings():  # a read-only memory map that is only read
        warnings.simplefilter("ignore", UserWarning)
        e, r = (
            torch.from_numpy(np.array(table) if learns else np.asarray(table)).to(device)
            for table in (crop.entities, crop.relations)
        )
    how = config.optimiser
    name = how.name if learns else "adagrad"
    length = how.init_norm if how.keep_length else None
    optimisers = (
        make_optimiser(name, e, length=length),
        make_optimiser(name, r, rate=how.relation_rate),
    )
    return Model(scorer, (crop.dim,), (crop.spec,), e, r, *optimisers)


def hard(
    scores: BatchScores, weights: Weights, temperature: float, masked: Tensor
) -> tuple[Tensor, Gradients]:
    """The loss of a direct training."""
    assert scores.negative is not None
    spec, query = scores.model.specs[-1], scores.query
    columns = [spec.scale], [spec.margin], [1.0], [0.0], [temperature]
    models = SubModels.from_columns(*columns, device=query.device, dtype=query.dtype)
    ei, _, dpositive = positives(scores.positive[..., 0], models, weights)
    first, second, third = (torch.empty_like(scores.negative) for _ in range(3))
    near = PositiveSlice(
        scores.positive[..., 0], dpositive, len(query), masked if len(masked) else None
    )
    more, _, dnegative = pairs(
        scores.negative, models, weights, near, (first, second, third), value=True
    )
    return (ei + more)[0], Gradients(dpositive[0], dnegative[0])


def kd_loss(config: MedConfig, temperature: float, hard_part: float, soft_part: float) -> Loss:
    """Labels and the teacher's distribution over each positive and its negatives."""
    weights, w2 = Weights.of(config), config.temperatures[-1]

    def loss(seen: Seen) -> tuple[Tensor, Gradients, None]:
        value, grads = hard(seen.student, weights, w2, seen.masked)
        soft, dpositive, dnegative = divergence(
            seen.student.scores(), seen.teacher.scores(), temperature
        )
        step = -seen.student.model.specs[-1].scale * soft_part  # from scores to distances
        grads.positive.mul_(hard_part).add_(dpositive, alpha=step)
        grads.negative.mul_(hard_part).add_(dnegative, alpha=step)
        return hard_part * value + soft_part * soft, grads, None

    return loss


def divergence(
    student: tuple[Tensor, Tensor], teacher: tuple[Tensor, Tensor], temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """T^2 KL(p_T || p_S) averaged over queries, and its gradients by the student's scores."""
    s, t = (torch.cat([p.unsqueeze(1), n], 1).div_(temperature) for p, n in (student, teacher))
    log_s = torch.log_softmax(s, 1)
    log_t = torch.log_softmax(t, 1)
    p = log_t.exp()
    value = torch.sum(p * (log_t - log_s)) * (temperature**2 / len(s))
    grad = log_s.exp_().sub_(p).mul_(temperature / len(s))
    return value, grad[:, 0], grad[:, 1:]


def huber_ramp_loss(config: MedConfig, weight: float, power: float) -> Loss:
    """Labels and the teacher's raw scores, whose weight grows as weight * done^power."""
    weights, w2 = Weights.of(config), config.temperatures[-1]

    def loss(seen: Seen) -> tuple[Tensor, Gradients, None]:
        value, grads = hard(seen.student, weights, w2, seen.masked)
        part = ramp(seen.done, weight, power)
        soft, dpositive, dnegative = score_gap(
            seen.student.scores(), seen.teacher.scores(), seen.masked
        )
        step = -seen.student.model.specs[-1].scale * part
        grads.positive.add_(dpositive, alpha=step)
        grads.negative.add_(dnegative, alpha=step)
        return value + part * soft, grads, None

    return loss


def ramp(done: float, weight: float, power: float) -> float:
    """lambda(e) = k (e / M)^p."""
    return weight * done**power


def score_gap(
    student: tuple[Tensor, Tensor], teacher: tuple[Tensor, Tensor], masked: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Huber of raw scores, mean over positives plus mean over negatives, and its gradients."""
    positive = student[0] - teacher[0]
    negative = student[1] - teacher[1]
    negative.view(-1)[masked] = 0.0
    count = max(1, negative.numel() - len(masked))
    value = huber(positive).sum() / len(positive) + huber(negative).sum() / count
    return (
        value,
        positive.clamp_(-1.0, 1.0).div_(len(positive)),
        negative.clamp_(-1.0, 1.0).div_(count),
    )


def huber(delta: Tensor) -> Tensor:
    """Huber with delta 1: quadratic near zero, linear beyond."""
    return huber_loss(delta, torch.zeros_like(delta), reduction="none")
