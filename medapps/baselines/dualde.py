"""DualDE: teacher and student weigh labels against each other, in two stages.

For a positive with scores f and its negatives f_k (S student, T teacher; a = softmax(tau f_S,k),
b = softmax(tau f_T,k), both without gradient; s = sigmoid; H = Huber):

    D+ = H(g(f_S) - g(f_T)) + structure     D- = sum_k a_k H(g(f_S,k) - g(f_T,k))    soft distance
    p+ = w(f_T)    p- = sum_k a_k (1 - w(f_T,k))      w(x) = s(alpha (x + beta))      soft labels
    q+ = w(f_S)    q- = sum_k a_k (1 - w(f_S,k))      each with its own alpha, beta
    S  = p+ D+ + p- D- + (1 - p+) h_S+ + (1 - p-) h_S-         h: hard losses, h_T- weighted by b
    T  = q+ D+ + q- D- + (1 - q+) h_T+ + (1 - q-) h_T-

Stage 1 descends on S with the teacher frozen, stage 2 on S + T with both, at a tenth of the rate.
g(x) is x, as in the paper, or s(x), as in its code. The structure of a positive is H of the
difference of cos(head, tail) plus H of the difference of |head| / |tail|. In stage 2 the soft
labels are differentiated too, as in the published code, whose commented-out structure term and
shared positive sigmoid are not copied.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import softplus

from medapps.baselines.distill import Gradients, Loss, Seen, huber
from medapps.train.step import BatchScores

LENGTH = 1e-6
"""Least length that is divided by."""


@dataclass(frozen=True)
class Labels:
    """Slopes and offsets of the soft labels p+, p-, q+, q-; learned by plain descent if `rate`."""

    values: Tensor = field(
        default_factory=lambda: torch.tensor([[1.0, 0.0]] * 4, dtype=torch.float64)
    )
    """(4, 2): alpha and beta of each label."""
    rate: float = 0.0

    def slope(self, which: int) -> float:
        return float(self.values[which, 0])

    def of(self, which: int, score: Tensor) -> Tensor:
        """w(x) of label `which`."""
        slope, offset = self.values[which].tolist()
        return torch.sigmoid(slope * (score + offset))

    def learn(self, which: int, score: Tensor, w: Tensor, dw: Tensor) -> None:
        """Descend on slope and offset; `dw` is the gradient of the loss by w."""
        if self.rate:
            self.values[which] -= self.rate * self.gradients(which, score, w, dw)

    def gradients(self, which: int, score: Tensor, w: Tensor, dw: Tensor) -> Tensor:
        """(2,): gradients of the loss by slope and offset."""
        slope, offset = self.values[which].tolist()
        inner = dw * w * (1 - w)
        dslope, doffset = (inner * (score + offset)).sum(), inner.sum() * slope
        return torch.stack([dslope, doffset]).double()


def dual_loss(
    temperature: float, structure: float, labels: Labels, *, both: bool, raw: bool = True
) -> Loss:
    """The loss of stage 1, or of stage 2 when `both` learn."""

    def loss(seen: Seen) -> tuple[Tensor, Gradients, Gradients | None]:
        fs, fsk = seen.student.scores()  # (B,), (B, N)
        ft, ftk = seen.teacher.scores()
        each = torch.ones_like(fs) / len(fs)
        a = torch.softmax(temperature * fsk, 1)
        # soft distances and their gradients
        ss, st, ssk, stk = (torch.sigmoid(x) for x in (fs, ft, fsk, ftk))
        gap, gapk = (fs - ft, fsk - ftk) if raw else (ss - st, ssk - stk)
        form = Structure.of(seen, structure) if structure else None
        d = huber(gap) + (form.value if form else 0.0)
        dk = (a * huber(gapk)).sum(1)
        grad, gradk = gap.clamp(-1, 1), a * gapk.clamp(-1, 1)
        hs, hsk = softplus(-fs), (a * softplus(fsk)).sum(1)
        w, wk = labels.of(0, ft), labels.of(1, ftk)
        p, pk = w, 1 - (a * wk).sum(1)
        value = p * d + pk * dk + (1 - p) * hs + (1 - pk) * hsk
        near, neark = p, pk  # weights of the soft distances
        if both:
            b = torch.softmax(temperature * ftk, 1)
            v, vk = labels.of(2, fs), labels.of(3, fsk)
            q, qk = v, 1 - (a * vk).sum(1)
            ht, htk = softplus(-ft), (b * softplus(ftk)).sum(1)
            value = value + q * d + qk * dk + (1 - q) * ht + (1 - qk) * htk
            near, neark = p + q, pk + qk

        js, jt, jsk, jtk = (1.0 if raw else x * (1 - x) for x in (ss, st, ssk, stk))  # g'
        dfs = near * grad * js - (1 - p) * (1 - ss)
        dfsk = neark[:, None] * gradk * jsk + (1 - pk)[:, None] * a * ssk
        if both:
            dfs += (d - ht) * labels.slope(2) * v * (1 - v)
            dfsk -= (dk - htk)[:, None] * a * labels.slope(3) * vk * (1 - vk)
            dft = -near * grad * jt - (1 - q) * (1 - st)
            dft += (d - hs) * labels.slope(0) * w * (1 - w)
            dftk = -neark[:, None] * gradk * jtk + (1 - qk)[:, None] * b * stk
            dftk -= (dk - hsk)[:, None] * a * labels.slope(1) * wk * (1 - wk)
            labels.learn(2, fs, v, each * (d - ht))
            labels.learn(3, fsk, vk, -(each * (dk - htk))[:, None] * a)
        labels.learn(0, ft, w, each * (d - hs))
        labels.learn(1, ftk, wk, -(each * (dk - hsk))[:, None] * a)

        own = Gradients(
            dfs.mul_(-seen.student.model.specs[-1].scale * each),
            dfsk.mul_(-seen.student.model.specs[-1].scale * each[:, None]),
            form.gradients(0, each * near) if form else None,
        )
        other = None
        if both:
            other = Gradients(
                dft.mul_(-seen.teacher.model.specs[-1].scale * each),
                dftk.mul_(-seen.teacher.model.specs[-1].scale * each[:, None]),
                form.gradients(1, each * near) if form else None,
            )
        return (each * value).sum(), own, other

    return loss


@dataclass(frozen=True)
class Shape:
    """Angle and relative length of source and target in one model."""

    source: Tensor
    target: Tensor
    lengths: tuple[Tensor, Tensor]
    """(B,) each."""
    cosine: Tensor
    ratio: Tensor
    """(B,): |head| / |tail|."""
    turned: Tensor
    """(B,) bool: the source is the tail."""

    @classmethod
    def of(cls, scores: BatchScores) -> Shape:
        source, target = scores.source, scores.target
        a, b = (x.norm(dim=1).clamp_min_(LENGTH) for x in (source, target))
        turned = torch.zeros(len(a), dtype=torch.bool)
        for chunk in scores.batch.chunks:
            turned[chunk.start : chunk.stop] = chunk.side == "head"
        turned = turned.to(a.device)
        cosine = (source * target).sum(1) / (a * b)
        return cls(source, target, (a, b), cosine, torch.where(turned, b / a, a / b), turned)

    def gradients(self, dcosine: Tensor, dratio: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of source and target rows (B, width) from those of cosine and ratio (B,)."""
        a, b = self.lengths
        dlog = torch.where(self.turned, -dratio, dratio) * self.ratio  # by log(a / b)
        across = (dcosine / (a * b))[:, None]
        dsource = (
            across * self.target + ((dlog - dcosine * self.cosine) / (a * a))[:, None] * self.source
        )
        dtarget = (
            across * self.source - ((dlog + dcosine * self.cosine) / (b * b))[:, None] * self.target
        )
        return dsource, dtarget


@dataclass(frozen=True)
class Structure:
    """The structure term of a batch."""

    value: Tensor
    """(B,)."""
    shapes: tuple[Shape, Shape]
    by_student: tuple[Tensor, Tensor]
    """Gradients by the student's cosine and ratio; the teacher's are the negatives."""

    @classmethod
    def of(cls, seen: Seen, weight: float) -> Structure:
        mine, yours = Shape.of(seen.student), Shape.of(seen.teacher)
        cosine, ratio = mine.cosine - yours.cosine, mine.ratio - yours.ratio
        value = weight * (huber(cosine) + huber(ratio))
        grads = weight * cosine.clamp(-1, 1), weight * ratio.clamp(-1, 1)
        return cls(value, (mine, yours), grads)

    def gradients(self, which: int, each: Tensor) -> tuple[Tensor, Tensor]:
        """Row gradients of the student (0) or the teacher (1), positives weighted by `each`."""
        sign = 1.0 if which == 0 else -1.0
        dcosine, dratio = (sign * each * grad for grad in self.by_student)
        return self.shapes[which].gradients(dcosine, dratio)
