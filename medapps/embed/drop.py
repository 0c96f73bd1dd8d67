"""Dropped coordinates: at each step a positive does without some numbers of its relation.

A term of PairRE and of the bilinear scorers has a number of the relation as a factor, so that a
zero there leaves the coordinate out, for the positive and all its negatives. What stays is
stretched to keep the score's size: sums of squares by (1 - p)^-1/2, sums of products by 1 / (1 -
p). Large sizes then cannot learn triples by heart through a few coordinates.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from medapps.embed.config import MedConfig
from medapps.score.rules import RULES


def draw_kept(draws: np.random.Generator, positives: int, config: MedConfig) -> np.ndarray:
    """float32 (positives, d): the factor of every coordinate, 0 where it is dropped."""
    kernel = RULES[config.scorer].KERNELS[config.norm]
    power = 1.0 if kernel == "product" else 0.5
    added = np.diff((0, *config.dims))
    share = np.repeat(np.array(config.drops, np.float32), added)
    stretch = (1 - share) ** np.float32(-power)
    return np.where(draws.random((positives, config.dims[-1]), np.float32) < share, 0, stretch)


def per_number(kept: np.ndarray, width: int, reals: int, device: torch.device) -> Tensor:
    """(positives, width): the factor of every number of a relation with `reals` a coordinate."""
    factor = torch.from_numpy(kept[:, : width // reals]).to(device)
    return factor.repeat_interleave(reals, 1)
