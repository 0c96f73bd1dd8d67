"""Scores of single triples in NumPy: what a device computes, and the truth for training."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from medapps.model.rule import EPSILON, ScoreSpec
from medapps.model.rules import RULES

__all__ = ["EPSILON", "SCORES", "Score", "ScoreSpec"]

Score = Callable[[np.ndarray, np.ndarray, np.ndarray, ScoreSpec], np.ndarray]
SCORES: dict[str, Score] = {name: rule.score for name, rule in RULES.items()}
