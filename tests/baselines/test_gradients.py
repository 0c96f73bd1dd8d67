"""One step of every distillation against autograd on the printed equations, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import huber_loss, log_softmax, softplus

from medapps.baselines.distill import (
    Loss,
    Seen,
    forward_all,
    huber_ramp_loss,
    kd_loss,
    learn,
    masked_of,
)
from medapps.baselines.dualde import Labels, dual_loss
from medapps.graph.graph import KnownTriples
from medapps.model.rule import EPSILON, ScoreSpec
from medapps.model.rules import make_scorer
from medapps.train.batches import Batch, sampler_of
from medapps.train.config import MedConfig
from medapps.train.step import Engine, Model
from tests.baselines.conftest import make_graph

F64 = torch.float64
LR = 1e-3


@dataclass(frozen=True)
class Descent:
    """Plain gradient descent, so that the gradient can be read off the move."""

    def step(self, table: Tensor, ids: Tensor, grad: Tensor, lr: float, count: int) -> None:
        table.index_add_(0, ids, grad, alpha=-lr)


def engine(n: int, relations: int, dim: int, spec: ScoreSpec, seed: int) -> Engine:
    g = torch.Generator().manual_seed(seed)
    tables = [torch.randn(k, dim, generator=g, dtype=F64) for k in (n, relations)]
    scorer = make_scorer(spec.scorer)
    return Engine(Model(scorer, (dim,), (spec,), *tables, Descent(), Descent()))  # type: ignore[arg-type]


def naive(tables: tuple[Tensor, Tensor], spec: ScoreSpec, batch: Batch) -> tuple[Tensor, Tensor]:
    """Scores of positives (B,) and negatives (B, N), triple by triple."""
    entities, relations = tables
    positive, negative = [], []
    for chunk in batch.chunks:
        for i in range(chunk.start, chunk.stop):
            others = chunk.negatives
            others = others if others.ndim == 1 else others[i - chunk.start]
            asked = torch.from_numpy(np.concatenate([[batch.target[i]], others])).long()
            given, r = entities[batch.source[i]], relations[batch.relation[i]]
            if spec.scorer == "distmult":
                d = -(given * r * entities[asked]).sum(1)
            else:
                q = given + r if chunk.side == "tail" else given - r
                d = ((q - entities[asked]).square().sum(1) + EPSILON).sqrt()
            s = spec.margin - spec.scale * d
            positive.append(s[0])
            negative.append(s[1:])
    return torch.stack(positive), torch.stack(negative)


def hard(sp: Tensor, sn: Tensor, keep: Tensor, w2: float) -> Tensor:
    """Self-adversarial loss of a direct training."""
    a = torch.softmax((w2 * sn).masked_fill(~keep, -torch.inf), 1).detach()
    return (softplus(-sp) + (a * softplus(sn)).sum(1)).mean()


def kd(s, t, keep, w2, hard_part: float, soft_part: float, temperature: float) -> Tensor:
    def log_p(p: Tensor, n: Tensor) -> Tensor:
        n = n.masked_fill(~keep, -1e9)
        return log_softmax(torch.cat([p[:, None], n], 1) / temperature, 1)

    log_s, log_t = log_p(*s), log_p(*t).detach()
    soft = (log_t.exp() * (log_t - log_s)).sum(1).mean() * temperature**2
    return hard_part * hard(*s, keep, w2) + soft_part * soft


def ramped(s, t, keep, w2, factor: float) -> Tensor:
    gap = huber_loss(s[0], t[0].detach())
    gaps = huber_loss(s[1][keep], t[1].detach()[keep])
    return hard(*s, keep, w2) + factor * (gap + gaps)


def h(x: Tensor) -> Tensor:
    return huber_loss(x, torch.zeros_like(x), reduction="none")


def shape(entities: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """cos(head, tail) and |head| / |tail| of every positive."""
    turned = np.zeros(len(batch.source), bool)
    for chunk in batch.chunks:
        turned[chunk.start : chunk.stop] = chunk.side == "head"
    head = entities[torch.from_numpy(np.where(turned, batch.target, batch.source)).long()]
    tail = entities[torch.from_numpy(np.where(turned, batch.source, batch.target)).long()]
    return torch.cosine_similarity(head, tail), head.norm(dim=1) / tail.norm(dim=1)


def dual(s, t, es, et, batch, keep, w2, structure, labels: Tensor, both: bool, raw: bool) -> Tensor:
    """The equations of the module docstring of dualde, with gradients through all but a and b."""
    a = torch.softmax((w2 * s[1]).masked_fill(~keep, -torch.inf), 1).detach()
    b = torch.softmax((w2 * t[1]).masked_fill(~keep, -torch.inf), 1).detach()

    def w(i: int, x: Tensor) -> Tensor:
        return torch.sigmoid(labels[i, 0] * (x + labels[i, 1]))

    (cs, rs), (ct, rt) = shape(es, batch), shape(et, batch)
    gs, gt = (x if raw else (x[0].sigmoid(), x[1].sigmoid()) for x in (s, t))
    d = h(gs[0] - gt[0]) + structure * (h(cs - ct) + h(rs - rt))
    dk = (a * h(gs[1] - gt[1])).sum(1)
    p, pk = w(0, t[0]), (a * (1 - w(1, t[1]))).sum(1)
    loss = p * d + pk * dk + (1 - p) * softplus(-s[0]) + (1 - pk) * (a * softplus(s[1])).sum(1)
    if both:
        q, qk = w(2, s[0]), (a * (1 - w(3, s[1]))).sum(1)
        loss = loss + q * d + qk * dk
        loss = loss + (1 - q) * softplus(-t[0]) + (1 - qk) * (b * softplus(t[1])).sum(1)
    return loss.mean()


class Case:
    """A student, a teacher and a batch with masked negatives and both sides."""

    def __init__(self, scorer: str, mode: str) -> None:
        graph = make_graph(n=40, relations=3, valid=10)
        self.config = MedConfig(
            dims=(5,), batch=48, chunk=16, negatives=12, negative_mode=mode, scorer=scorer,
            filter_known=True, temperature=1.5,
        )  # fmt: skip
        known = KnownTriples.of(graph.train, 40)
        sampler = sampler_of(graph.train, 40, self.config, 3, known)
        self.batch = sampler.batch(0, 1)
        self.masked = masked_of(self.batch)
        assert len(self.masked) and {c.side for c in self.batch.chunks} == {"head", "tail"}
        self.keep = torch.ones(48, 12, dtype=torch.bool)
        self.keep.view(-1)[self.masked] = False
        specs = (ScoreSpec(scorer=scorer, scale=scale, margin=4.0) for scale in (1.0, 0.8))
        self.student = engine(40, 3, 5, next(specs), 0)
        self.teacher = engine(40, 3, 8, next(specs), 1)
        self.leaves = [
            tuple(t.clone().requires_grad_() for t in p.model.tables().values())
            for p in (self.student, self.teacher)
        ]
        self.scores = [
            naive(leaf, p.model.specs[0], self.batch)
            for leaf, p in zip(self.leaves, (self.student, self.teacher), strict=True)
        ]

    def check(self, loss: Loss, truth: Tensor, *, both: bool = False, done: float = 0.5) -> None:
        """Move both models once; compare value and moves with autograd."""
        truth.backward()
        with torch.no_grad():
            both_engines = self.student, self.teacher
            views = [forward_all(p, self.batch, self.masked, drop=False) for p in both_engines]
            value, *pulls = loss(Seen(*views, self.masked, done))
            for p, view, pull in zip(both_engines, views, pulls, strict=True):
                if pull is not None:
                    learn(p, view, pull, 0.0)
                    p.apply(view, LR, 0)
        assert float(value) == pytest.approx(float(truth.detach()), rel=1e-9)
        assert (pulls[1] is not None) == both
        players = (self.student, self.teacher) if both else (self.student,)
        for p, leaves in zip(players, self.leaves, strict=False):
            for table, leaf in zip(p.model.tables().values(), leaves, strict=True):
                torch.testing.assert_close(
                    (leaf.detach() - table) / LR, leaf.grad, rtol=1e-7, atol=1e-9
                )


CASES = [("transe", "shared"), ("transe", "independent"), ("distmult", "shared")]


@pytest.mark.parametrize(("scorer", "mode"), CASES)
@pytest.mark.parametrize(
    ("hard_part", "soft_part", "temperature"), [(1.0, 0.7, 2.0), (0.4, 0.6, 1)]
)
def test_divergence_step_is_the_gradient(scorer, mode, hard_part, soft_part, temperature):
    case = Case(scorer, mode)
    truth = kd(*case.scores, case.keep, 1.5, hard_part, soft_part, temperature)
    case.check(kd_loss(case.config, temperature, hard_part, soft_part), truth)


@pytest.mark.parametrize(("scorer", "mode"), CASES)
def test_ramped_huber_step_is_the_gradient(scorer, mode):
    case = Case(scorer, mode)
    truth = ramped(*case.scores, case.keep, 1.5, 0.9 * 0.5**2)
    case.check(huber_ramp_loss(case.config, 0.9, 2.0), truth)


LABELS = torch.tensor([[1.2, 0.1], [0.8, -0.2], [1.1, 0.3], [0.9, 0.05]], dtype=F64)


@pytest.mark.parametrize(("scorer", "mode"), CASES)
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize(("structure", "raw"), [(0.0, True), (0.7, True), (0.7, False)])
def test_dualde_step_is_the_gradient_of_both_models(scorer, mode, both, structure, raw):
    case = Case(scorer, mode)
    es, et = (leaf[0] for leaf in case.leaves)
    truth = dual(*case.scores, es, et, case.batch, case.keep, 1.5, structure, LABELS, both, raw)
    loss = dual_loss(1.5, structure, Labels(LABELS.clone()), both=both, raw=raw)
    case.check(loss, truth, both=both)


def test_soft_labels_descend_on_the_same_loss():
    case = Case("transe", "shared")
    es, et = (leaf[0] for leaf in case.leaves)
    leaf = LABELS.clone().requires_grad_()
    truth = dual(*case.scores, es, et, case.batch, case.keep, 1.5, 1.0, leaf, True, True)
    learned = Labels(LABELS.clone(), rate=0.01)
    case.check(dual_loss(1.5, 1.0, learned, both=True), truth, both=True)
    torch.testing.assert_close((LABELS - learned.values) / 0.01, leaf.grad, rtol=1e-7, atol=1e-9)
