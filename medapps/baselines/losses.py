"""What a student learns from labels and from its teacher's scores, with gradients written out.

    hard     the loss of a direct training: softplus(-s+) + sum_k w_k softplus(s-_k)
    kd       a hard + b T^2 KL(p_T || p_S),  p = softmax over {positive, negatives} of s / T
             d/ds_S = b T (p_S - p_T)                              bkd: a = 1; ta: a = 1 - b
    huber    hard + b [mean_pos H(s_S - s_T) + mean_neg H(s_S - s_T)]                     (iterde)

All are means over the positives of a batch. Gradients are with respect to the student's distances:
s = margin - scale D.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from medapps.baselines.player import Player, View
from medapps.train.config import MedConfig
from medapps.train.loss.med import pairs, positives
from medapps.train.loss.submodels import SubModels, Weights


@dataclass(frozen=True)
class Seen:
    """What a loss looks at: both models on one batch."""

    student: Player
    view: View
    teacher: Player
    shown: View
    """The teacher's view."""
    masked: Tensor
    """int64: flat positions in (B, N) that are no negatives."""
    done: float
    """Part of the training that is over."""


@dataclass(frozen=True)
class Pull:
    """Gradients of one model: distances (B,) and (B, N), and perhaps source and target rows."""

    positive: Tensor
    negative: Tensor
    ends: tuple[Tensor, Tensor] | None = None


Loss = Callable[[Seen], tuple[Tensor, Pull, Pull | None]]
"""Value, the student's pull, and the teacher's pull if it learns too."""


def hard(
    player: Player, view: View, weights: Weights, temperature: float, seen: Seen
) -> tuple[Tensor, Pull]:
    """The loss of a direct training, from the engine."""
    spec, kind = player.spec, view.query.dtype
    models = SubModels.of(
        [spec.scale], [spec.margin], [1.0], [temperature], [0.0], view.query.device, kind
    )
    ei, _, dpositive = positives(view.positive[..., 0], models, weights)
    spare = torch.empty_like(view.negative), torch.empty_like(view.negative)
    masked = seen.masked if len(seen.masked) else None
    more, _, dnegative = pairs(
        view.negative, models, weights, len(view.query), masked,
        (*spare, torch.empty_like(view.negative)), value=True,
    )  # fmt: skip
    assert more is not None
    return (ei + more)[0], Pull(dpositive[0], dnegative[0])


def kd_loss(config: MedConfig, temperature: float, hard_part: float, soft_part: float) -> Loss:
    """Labels and the teacher's distribution over each positive and its negatives."""
    weights, w2 = Weights.of(config), config.temperatures[-1]

    def loss(seen: Seen) -> tuple[Tensor, Pull, None]:
        value, pull = hard(seen.student, seen.view, weights, w2, seen)
        soft, dpositive, dnegative = divergence(
            seen.student.scores(seen.view), seen.teacher.scores(seen.shown), temperature
        )
        step = -seen.student.spec.scale * soft_part  # from scores to distances
        pull.positive.mul_(hard_part).add_(dpositive, alpha=step)
        pull.negative.mul_(hard_part).add_(dnegative, alpha=step)
        return hard_part * value + soft_part * soft, pull, None

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

    def loss(seen: Seen) -> tuple[Tensor, Pull, None]:
        value, pull = hard(seen.student, seen.view, weights, w2, seen)
        part = ramp(seen.done, weight, power)
        soft, dpositive, dnegative = score_gap(
            seen.student.scores(seen.view), seen.teacher.scores(seen.shown), seen.masked
        )
        pull.positive.add_(dpositive, alpha=-seen.student.spec.scale * part)
        pull.negative.add_(dnegative, alpha=-seen.student.spec.scale * part)
        return value + part * soft, pull, None

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
