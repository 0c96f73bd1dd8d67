"""What the losses need to know: the choices of a training, and the sub-models of one step.

The dynamic loss weight a_i = exp(w3 d_i/d_n) says how much the loss of a sub-model counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from medapps.train.config import MedConfig

HIGHEST = 40.0
"""Margins (times w2) up to this need no shift: exp(-c D) keeps its digits where scores matter."""


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
        return cls(
            positive_weights=config.loss.positive_weights,
            positive_temperature=config.loss.positive_temperature,
            negative_weights=config.loss.negative_weights
            if any(config.temperatures)
            else "uniform",
            negative_norm=config.loss.negative_norm,
            ml_down=config.loss.ml_down,
            ml_up=config.loss.ml_up,
            own_answer=config.loss.own_answer,
            penalty=config.loss.penalty,
            plain_powers=bounded and max(highest) < HIGHEST,
        )

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
