"""The settings of MED for one size alone."""

from __future__ import annotations

from typing import Any

from medapps.model.rules import RULES
from medapps.model.spec import SUMS
from medapps.train.config import MedConfig

ALONE: dict[str, Any] = {
    "ml_down": 0.0,
    "ml_up": 0.0,
    "distil": 0.0,
    "positive_weights": "uniform",
    "negative_weights": "own",
    "negative_norm": "per_positive",
    "dlw": "off",
    "scale_power": 0.0,
    "rate_power": 0.0,
    "from_larger": 1.0,
    "patience": None,
}
"""What concerns several prefixes or early stopping has no part in a model of one size."""


def alone(
    train: MedConfig, dim: int, *, margin: float | None = None, lr: float | None = None, **more: Any
) -> MedConfig:
    """The settings of MED for one size alone: same batches, negatives, optimiser and epochs."""
    usual = {
        "lr": lr or default_rate(train, dim),
        "penalty": default_penalty(train, dim),
        "init_norm": default_length(train, dim),
    }
    if RULES[train.scorer].RELATIONS == "angles" and train.norm in SUMS:
        ratio = train.optimiser.lr / default_rate(train, dim)  # angles are as large in every size
        usual["relation_rate"] = train.optimiser.relation_rate * ratio
    given = ALONE | usual | more
    if margin:
        given["margin"] = margin
    return train.resized([dim], **given)


def default_rate(train: MedConfig, dim: int) -> float:
    """MED's rate, raised for small sizes.

    A step moves a row by about rate * sqrt(dim): the fourth root goes half the way to steps of
    equal length. A prefix of a sum is stretched in MED: alone its numbers, and so its steps, are
    larger by as much.
    """
    power = 0.25
    if train.norm in SUMS:
        power = 0.5 if train.optimiser.keep_length else train.loss.scale_power
    return train.optimiser.lr * (train.dims[-1] / dim) ** power


def default_length(train: MedConfig, dim: int) -> float:
    """Start length of an entity whose numbers are as large as those of MED's stretched prefix."""
    if train.norm not in SUMS or train.optimiser.keep_length:
        return train.optimiser.init_norm
    return train.optimiser.init_norm * (train.dims[-1] / dim) ** (train.loss.scale_power - 0.5)


def default_penalty(train: MedConfig, dim: int) -> float:
    """MED's penalty over what makes it weaker there: a small prefix has its scores stretched, and
    several losses move a number.
    """
    losses = sum(train.loss.from_larger**i for i in range(len(train.dims)))
    return train.loss.penalty / (losses * (train.dims[-1] / dim) ** train.loss.scale_power)
