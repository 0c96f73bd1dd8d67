"""The losses: those of MED by the graph engine's own code, and those of the baselines.

The engine knows distances and scores s = m - c D. With c = 1, m = 0 and D = -logit every pair of a
sentence and a class is a triple: the true class a positive, the other classes its negatives. Its
gradients are written out, so they are handed to autograd at the logits. It has no regression, and
no cross-entropy; these are written here once, with its weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, huber_loss, kl_div, mse_loss, normalize

from medapps.text.config import MechanismConfig, TeachConfig
from medapps.train.loss.med import (
    PositiveSlice,
    SubModels,
    Weights,
    over_positives,
    pairs,
    positive_weights,
    positives,
    shares,
)


def plain_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy, or the squared error of one output; () from (B, C)."""
    return each_loss(logits, labels).mean()


def each_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The same per sentence (B,)."""
    if logits.shape[1] == 1:
        return (logits[:, 0] - labels).square()
    return cross_entropy(logits, labels, reduction="none")


def med_loss(
    logits: Sequence[Tensor], labels: Tensor, widths: tuple[int, ...], config: MechanismConfig
) -> Tensor:
    """The loss of all widths, ascending."""
    stacked = torch.stack(list(logits))  # (n, B, C)
    share = shares(config.dlw, config.w3, widths).to(stacked)
    if config.loss == "pairs" and stacked.shape[2] > 1:
        value, grad = pairs_loss(stacked.detach(), labels, share, config)
        return value + ((stacked - stacked.detach()) * grad).sum()
    return examples_loss(stacked, labels, share, config)


def pairs_loss(
    logits: Tensor, labels: Tensor, share: Tensor, config: MechanismConfig
) -> tuple[Tensor, Tensor]:
    """The engine's loss () and its gradient (n, B, C) by logits (n, B, C)."""
    n, batch, classes = logits.shape
    true = torch.nn.functional.one_hot(labels, classes).bool().expand(n, -1, -1)
    near = -logits[true].view(n, batch)
    far = -logits[~true].view(n, batch, classes - 1)
    one, zero, a = [1.0] * n, [0.0] * n, share.tolist()  # c, m and the loss weights
    w2, distil = [config.temperature] * n, [config.distil] * n
    models = SubModels.from_columns(
        one, zero, a, distil, w2, device=logits.device, dtype=logits.dtype
    )
    weights = Weights(
        positive_weights=config.positive_weights,
        positive_temperature=config.positive_temperature,
        negative_weights=config.negative_weights if config.temperature else "uniform",
        negative_norm="batch",
        ml_down=config.ml_down,
        ml_up=config.ml_up,
    )
    ei, ml, near_grad = positives(near, models, weights)
    buffers = torch.empty_like(far), torch.empty_like(far), torch.empty_like(far)
    batch_of = PositiveSlice(near, near_grad, batch)
    more, rest, far_grad = pairs(far, models, weights, batch_of, buffers, value=True)
    grad = torch.empty_like(logits)
    grad[true] = -near_grad.flatten()
    grad[~true] = -far_grad.flatten()
    return (share * (ei + more)).sum() + ml + rest, grad


def examples_loss(logits: Tensor, labels: Tensor, share: Tensor, config: MechanismConfig) -> Tensor:
    """Weights of the engine on the losses of sentences; Huber between neighbouring outputs."""
    if logits.shape[2] == 1:
        score = -(logits[..., 0] - labels).abs()
    else:
        score = logits.gather(2, labels.expand(len(logits), -1).unsqueeze(2))[..., 0]
    mode, w1 = config.positive_weights, config.positive_temperature
    score = score.detach()
    weight = positive_weights(-score, score, mode, w1, len(labels), over_positives)  # (n, B)
    loss = torch.stack([each_loss(one, labels) for one in logits])
    total = (share[:, None] * weight * loss).sum()
    small, large = logits[:-1], logits[1:]
    if len(small):
        steps = len(small)
        total = total + steps * config.ml_down * huber_loss(small, large.detach())
        total = total + steps * config.ml_up * huber_loss(small.detach(), large)
    return total


def taught_loss(logits: Tensor, labels: Tensor, teacher: Tensor, config: TeachConfig) -> Tensor:
    """bkd: labels and the teacher's outputs (B, C)."""
    hard, t = plain_loss(logits, labels), config.temperature
    if logits.shape[1] == 1:
        return hard + config.weight * mse_loss(logits, teacher)
    soft = kl_div((logits / t).log_softmax(1), (teacher / t).softmax(1), reduction="batchmean")
    return hard + config.weight * t * t * soft


def patient_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """pkd: squared distance of normalised first tokens (layers, B, d), the last layer left out.

    The published method has one width; here the teacher's leading d coordinates stand for it, of
    which the student began as a copy.
    """
    kept = teacher[1:-1, :, : student.shape[2]]
    gap = normalize(student[1:-1], dim=2) - normalize(kept, dim=2)
    return gap.square().sum(2).mean()
