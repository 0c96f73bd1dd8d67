"""The losses of MED and their gradients with respect to distances, written out by hand.

Sub-model i has distances D_i and scores s_i = m_i - c_i D_i of B positives and, per positive, N
negatives.

    EI_i = sum_b p_ib softplus(-s_ib) + sum_bk w_ibk softplus(s_ibk)    evolutionary improvement
    p_i  = softmax_b(f(i-1)), f one of -w1/D (recip_dist) and w1 (1 - sigmoid(s)) (prob);
           1/B for the smallest model and with "uniform"
    w_i  = softmax_k(w2_i s_i) / B ("own"), softmax_k(w2_i s_{i-1}) / B ("smaller"), or 1/(BN)
           ("uniform", w2 = 0);
           negative_norm "batch": the softmax runs over the chunk, not one positive's negatives
    ML   = sum_i down H(s_{i-1}, [s_i]) + up H([s_{i-1}], s_i)          mutual learning
           H = Huber with delta 1, [.] = no gradient; mean over positives plus mean over negatives
    KD   = sum_{i<n} k_i a_i mean_b KL([P_n] || P_i)                    the full size teaches all
           P_i = softmax of s_i over a positive and its negatives, k_i = `distil` of that size
    OWN  = sum_i a_i mean_b f_b softplus(s_i(query b, its own entity))  f_b = 1 where that is wrong
    a_i  = 1 | exp(w3 d_i/d_n)                                          dynamic loss weight
    L    = sum_i a_i EI_i + ML + KD + own_answer OWN

All weights p, w are constants for the gradient: dEI/ds is -p sigmoid(-s) on positives, w sigmoid(s)
on negatives. Masked negatives are given the distance `FAR`, at which every term vanishes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn.functional import huber_loss, softplus

from medapps.train.config import MedConfig
from medapps.train.loss.fast_path import HIGHEST, fast_pairs


@dataclass(frozen=True)
class Weights:
    """The choices of the loss that do not change from step to step."""

    positive_weights: str = "uniform"
    positive_temperature: float = 1.0
    negative_weights: str = "own"
    negative_norm: str = "per_positive"
    ml_down: float = 0.0
    ml_up: float = 0.0
    own_answer: float = 0.0
    penalty: float = 0.0
    plain_powers: bool = False
    """Exponentials of scores are safe without a shift."""

    @classmethod
    def of(cls, config: MedConfig, *, bounded: bool = False) -> Weights:
        """The choices of `config`; `bounded` says that no score exceeds its margin."""
        highest = (
            max(1.0, w2) * m for w2, m in zip(config.temperatures, config.margins, strict=True)
        )
        loss = config.loss.model_dump()
        same = {field.name: loss[field.name] for field in fields(cls) if field.name in loss}
        if not any(config.temperatures):
            same["negative_weights"] = "uniform"
        return cls(**same, plain_powers=bounded and max(highest) < HIGHEST)

    @property
    def fast(self) -> bool:
        """May `fast_pairs` stand in for the general path?"""
        usual = self.negative_weights == "own" and self.negative_norm == "per_positive"
        return usual and not self.mutual

    @property
    def mutual(self) -> bool:
        return bool(self.ml_down or self.ml_up)


@dataclass(frozen=True)
class SubModels:
    """The sub-models of one step: c_i, m_i, a_i, k_i, each (n, 1, 1), and w2 of each."""

    scale: Tensor
    margin: Tensor
    share: Tensor
    distil: Tensor
    temperature: tuple[float, ...]
    taught: bool
    """Is there a k_i above 0, and a larger size to teach?"""

    @classmethod
    def of(cls, config: MedConfig, w3: float, device: torch.device) -> SubModels:
        """Those of a training, their losses weighted by w3."""
        share = shares(config.loss.dlw, w3, config.dims).tolist()
        columns = config.scales, config.margins, share, config.distils
        return cls.from_columns(*columns, config.temperatures, device=device)

    @classmethod
    def from_columns(
        cls,
        scale: Sequence[float],
        margin: Sequence[float],
        share: Sequence[float],
        distil: Sequence[float],
        temperature: Sequence[float],
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> SubModels:
        """From one number per sub-model."""
        c, m, a, k = (
            torch.tensor(x, device=device, dtype=dtype).view(-1, 1, 1)
            for x in (scale, margin, share, distil)
        )
        return cls(c, m, a, k, tuple(temperature), any(distil[:-1]))

    def part(self, which: slice) -> SubModels:
        """Some of them."""
        return SubModels(
            self.scale[which],
            self.margin[which],
            self.share[which],
            self.distil[which],
            self.temperature[which],
            self.taught,
        )


def shares(mode: str, w3: float, dims: tuple[int, ...]) -> Tensor:
    """a (n,): weights of the sub-models' losses."""
    x = torch.tensor([d / dims[-1] for d in dims], dtype=torch.float64)
    if mode == "off":
        return torch.ones_like(x)
    return torch.exp(w3 * x)


def step_w3(w3: float, ei: Tensor, dims: tuple[int, ...], lr: float) -> float:
    """w3 after one step of descent on sum a_i EI_i."""
    x = torch.tensor([d / dims[-1] for d in dims], dtype=torch.float64)
    ei = ei.double().cpu()
    a = shares("literal", w3, dims)
    return w3 - lr * float((x * a * ei).sum())


FAR = 1e6
"""Distance of a masked negative."""


TINY = 1e-6


@dataclass(frozen=True)
class PositiveSlice:
    """Some positives of a batch, as the losses of their negatives see them."""

    distance: Tensor  # (n, b)
    grad: Tensor  # (n, b): dL/dD so far; distillation adds to it
    of: int
    """Positives in the whole batch."""
    masked: Tensor | None = None
    """int64: flat positions in (b, N) that are no negatives."""

    def part(self, which: slice, masked: Tensor | None) -> PositiveSlice:
        """Some of them; `grad` stays shared."""
        return PositiveSlice(self.distance[:, which], self.grad[:, which], self.of, masked)


Softmax = Callable[[Tensor], Tensor]
"""Over the second axis."""


def over_positives(exponent: Tensor) -> Tensor:
    """Softmax over the positives of a batch that is at hand whole."""
    return torch.softmax(exponent, 1)


def positive_weights(
    distance: Tensor,
    score: Tensor,
    mode: str,
    w1: float,
    of: int,
    softmax: Softmax,
) -> Tensor:
    """p (n, b) of b of the B = `of` positives: rows sum to one over all of them; row i falls with
    the score of sub-model i - 1, row 0 is flat.
    """
    out = torch.full_like(score, 1.0 / of)
    if mode == "uniform" or len(score) == 1:
        return out
    d, s = distance[:-1], score[:-1]
    exponent = -w1 / (d + TINY) if mode == "recip_dist" else w1 * torch.sigmoid(-s)
    out[1:] = softmax(exponent)
    return out


def negative_weights(
    score: Tensor,
    temperature: tuple[float, ...],
    weights: Weights,
    masked: Tensor | None,
    out: Tensor,
    spare: Tensor,
) -> Tensor:
    """w (n, b, N) into `out`: sums to one per row, or per sub-model with negative_norm "batch"."""
    n, b, count = score.shape
    batch = weights.negative_norm == "batch"
    shape = (-1, b * count) if batch else (-1, b, count)
    first = {"own": 0, "smaller": 1, "uniform": n}[weights.negative_weights]
    if first < n:
        w2 = score.new_tensor(temperature[first:]).view(-1, 1, 1)
        torch.mul(score[: n - first], w2, out=spare[first:])
        torch.softmax(spare[first:].view(shape), -1, out=out[first:].view(shape))
    if first > 0:
        valid = torch.full((b, 1), float(count), dtype=score.dtype, device=score.device)
        if masked is not None:
            valid -= torch.bincount(masked // count, minlength=b).unsqueeze(1)
        out[:first] = 1.0 / (valid.sum() if batch else valid.clamp_min(1.0))
    return out


def positives(
    distance: Tensor,
    models: SubModels,
    weights: Weights,
    *,
    of: int | None = None,
    softmax: Softmax = over_positives,
) -> tuple[Tensor, Tensor, Tensor]:
    """EI (n,), ML (), and dL/dD (n, B) of aligned positives.

    Where the positives are a part of a batch, `of` is its size and `softmax` spans all of it.
    """
    of = of or distance.shape[1]
    scale, margin, share = models.scale[:, 0], models.margin[:, 0], models.share[:, 0]  # (n, 1)
    score = margin - scale * distance
    mode, w1 = weights.positive_weights, weights.positive_temperature
    p = positive_weights(distance, score, mode, w1, of, softmax)
    ei = (p * softplus(-score)).sum(1)
    grad = p.mul_(share).mul_(torch.sigmoid(-score)).neg_()
    ml = distance.new_zeros(())
    if len(score) > 1 and weights.mutual:
        ml = _mutual(score, grad, weights, 1.0 / of, None)
    return ei, ml, grad.mul_(-scale)


def own_answers(
    distance: Tensor, models: SubModels, weights: Weights, foreign: Tensor, *, of: int
) -> tuple[Tensor, Tensor]:
    """OWN (), weighted, and its dL/dD (n, b), for distances of b of the queries of a batch of size
    `of` to their own entities.
    """
    scale, margin, share = models.scale[:, 0], models.margin[:, 0], models.share[:, 0]  # (n, 1)
    score = margin - scale * distance
    factor = foreign * share * (weights.own_answer / of)  # (n, b)
    return (factor * softplus(score)).sum(), factor * torch.sigmoid(score) * -scale


def _mutual(
    score: Tensor, grad: Tensor, weights: Weights, each: float, masked: Tensor | None
) -> Tensor:
    """Add the gradient of mutual learning to grad (n, ...) and return its value."""
    delta = score[:-1] - score[1:]
    if masked is not None:
        delta.view(len(delta), -1)[:, masked] = 0.0
    value = huber_loss(delta, torch.zeros_like(delta), reduction="sum") * each
    delta.clamp_(-1.0, 1.0)
    grad[:-1].add_(delta, alpha=weights.ml_down * each)
    grad[1:].sub_(delta, alpha=weights.ml_up * each)
    return value * (weights.ml_down + weights.ml_up)


def _taught(
    score: Tensor,
    spare: Tensor,
    grad: Tensor,
    near: PositiveSlice,
    models: SubModels,
    *,
    value: bool,
) -> Tensor:
    """Add the gradient of KD to grad (n, b, N) = dL/ds and to the positives' dL/dD; its value."""
    scale, margin = models.scale[:, 0], models.margin[:, 0]
    share = (models.share * models.distil)[:-1] / near.of
    own = margin - scale * near.distance
    total = torch.logaddexp(torch.logsumexp(score, -1), own)
    own -= total
    chance = torch.sub(score, total.unsqueeze(-1), out=spare)  # logarithms so far
    kl = score.new_zeros(())
    if value:
        far = (chance[-1] - chance[:-1]).mul_(chance[-1].exp()).sum(-1)  # (n - 1, b)
        close = (own[-1] - own[:-1]) * own[-1].exp()
        kl = ((far + close) * share[:, 0]).sum()
    chance.exp_()
    own.exp_()
    grad[:-1].add_(chance[:-1].sub_(chance[-1]).mul_(share))
    near.grad[:-1] -= (own[:-1] - own[-1]) * share[:, 0] * scale[:-1]
    return kl


def pairs(
    distance: Tensor,
    models: SubModels,
    weights: Weights,
    near: PositiveSlice,
    buffers: tuple[Tensor, Tensor, Tensor],
    *,
    value: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """EI (n,) (zeros unless `value`), ML + KD () and dL/dD (n, b, N), for b of the positives.

    `buffers` are three tensors like `distance`, the last of which becomes the gradient.
    """
    n, b, count = distance.shape
    score, spare, grad = buffers
    if near.masked is not None:
        distance.view(n, -1)[:, near.masked] = FAR
    if weights.fast and not value:
        fast_pairs(distance, models, weights, near, buffers)
        return distance.new_zeros(n), distance.new_zeros(()), grad
    torch.mul(distance, -models.scale, out=score).add_(models.margin)
    negative_weights(score, models.temperature, weights, near.masked, grad, spare)
    part = (b if weights.negative_norm == "batch" else 1) / near.of
    ei = distance.new_zeros(n)
    if value:
        ei = torch.mul(grad, softplus(score), out=spare).sum((1, 2)) * part
    mutual = n > 1 and weights.mutual
    ml = distance.new_zeros(())
    factor = models.share * part
    if mutual or models.taught:
        torch.sigmoid(score, out=spare)
        grad.mul_(spare).mul_(factor)
        if mutual:
            ml = _mutual(score, grad, weights, 1.0 / (near.of * count), near.masked)
        if models.taught:
            ml = ml + _taught(score, spare, grad, near, models, value=value)
        grad.mul_(-models.scale)
    else:
        grad.mul_(score.sigmoid_()).mul_(-models.scale * factor)
    return ei, ml, grad
