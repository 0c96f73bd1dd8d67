"""Many two-layer classifiers trained at once on the same vectors: every seed with every setting.

Weights of all models lie in one tensor, so that a step is two batched matrix products. A model
depends on its own seed and setting alone: training it with other models gives the same weights.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from medapps.crop.service import Scaling, UserVectors
from medapps.errors import MedappsError
from medapps.evaluate.metrics import batched_f1_macro, confusion, label_metrics
from medapps.graph.split import TEST, TRAIN, VALID
from medapps.graph.user_tables import Labels
from medapps.label.config import LabelConfig
from medapps.label.model import HIDDEN_NUMBERS, mlp_probabilities


@dataclass(frozen=True)
class Examples:
    """Standardised vectors and class ids of all users, and the part that each is in."""

    x: np.ndarray  # (users, width) float32
    y: np.ndarray  # (users,) int64
    part: np.ndarray  # (users,) int8
    classes: int

    @classmethod
    def of(
        cls, vectors: UserVectors, labels: Labels, part: np.ndarray, config: LabelConfig
    ) -> tuple[Examples, Scaling]:
        """Vectors scaled as the training users' are, with a flag for missing users."""
        trained = (part == TRAIN) & vectors.known
        scaling = Scaling.fit(vectors.values[trained], whole=config.scaling == "whole")
        x = scaling.apply(vectors.values, vectors.known)
        return cls(x, labels.label, part, len(labels.classes)), scaling

    def of_part(self, part: int) -> tuple[np.ndarray, np.ndarray]:
        """x and y of the users in one part."""
        return self.x[self.part == part], self.y[self.part == part]


@dataclass(frozen=True)
class MlpSetting:
    """What is chosen on validation users."""

    dropout: float
    weight_decay: float


@dataclass(frozen=True)
class MlpFit:
    """The best weights of every model, by seed (first axis) and setting (second axis)."""

    w1: np.ndarray  # (seeds, settings, dim, hidden)
    b1: np.ndarray  # (seeds, settings, hidden)
    w2: np.ndarray  # (seeds, settings, hidden, classes)
    b2: np.ndarray  # (seeds, settings, classes)
    valid: np.ndarray  # (seeds, settings) macro F1 of the kept epoch
    epoch: np.ndarray  # (seeds, settings) the kept epoch

    def probabilities(self, x: np.ndarray, seed: int, setting: int) -> np.ndarray:
        """Class probabilities (users, classes) of one model."""
        at = seed, setting
        return mlp_probabilities(x, self.w1[at], self.b1[at], self.w2[at], self.b2[at])


def choose(f1: np.ndarray, loss: np.ndarray, users: int) -> int:
    """The setting of least log loss among those within a standard error of the best macro F1.

    Log loss is far less noisy on few validation users, but with many classes it may prefer a
    network that predicts the frequent ones only.
    """
    best = float(f1.max())
    near = f1 >= best - (best * (1 - best) / users) ** 0.5
    return int(np.argmin(np.where(near, loss, np.inf)))


def train_mlps(
    examples: Examples,
    seeds: tuple[int, ...],
    settings: tuple[MlpSetting, ...],
    config: LabelConfig,
) -> MlpFit:
    """Train len(seeds) * len(settings) models with Adam; each keeps its best validation epoch."""
    x, y = examples.of_part(TRAIN)
    x_valid, y_valid = examples.of_part(VALID)
    stack = _Stack(x.shape[1], examples.classes, seeds, settings, config)
    data, target = torch.from_numpy(x), torch.from_numpy(y)
    data_valid = torch.from_numpy(x_valid)
    shape = (len(seeds), len(settings))
    at_once = max(1, HIDDEN_NUMBERS // (len(seeds) * len(settings) * config.hidden))
    best, best_epoch = np.full(shape, -1.0), np.zeros(shape, int)
    kept = [value.detach().clone() for value in stack.weights]
    for epoch in range(1, config.epochs + 1):
        orders = torch.stack([torch.randperm(len(x), generator=g) for g in stack.generators])
        for start in range(0, len(x), config.batch):
            rows = orders[:, start : start + config.batch]  # (seeds, rows)
            stack.step(data[rows], target[rows])
        with torch.no_grad():
            parts = (part.expand(len(seeds), -1, -1) for part in data_valid.split(at_once))
            guess = torch.cat([stack.logits(part).argmax(-1) for part in parts], dim=2)
        score = batched_f1_macro(y_valid, guess.flatten(0, 1).numpy(), examples.classes)
        score = score.reshape(shape)
        better = (score > best) & stack.finite()
        best[better], best_epoch[better] = score[better], epoch
        for value, keep in zip(stack.weights, kept, strict=True):
            chosen = torch.from_numpy(better)[(...,) + (None,) * (value.dim() - 2)]
            keep.copy_(torch.where(chosen, value.detach(), keep))
        if (epoch - best_epoch).min() >= config.patience:
            break
    if not best_epoch.all(axis=0).any():
        raise MedappsError(
            "Training of the labeller diverged: its weights are not finite.",
            fix="Lower the learning rate: --set label.learning_rate="
            f"{config.learning_rate / 3:.2g}.",
        )
    w1, b1, w2, b2 = (value.numpy() for value in kept)
    return MlpFit(w1, b1, w2, b2, best, best_epoch)


class _Stack:
    """Weights, Adam state and random generators of all models."""

    def __init__(
        self,
        dim: int,
        classes: int,
        seeds: tuple[int, ...],
        settings: tuple[MlpSetting, ...],
        config: LabelConfig,
    ) -> None:
        hidden, rate = config.hidden, config.learning_rate
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        first = self._uniform((dim, hidden), dim)
        second = self._uniform((hidden, classes), hidden)
        copies = len(settings)
        zeros = (len(seeds), copies)
        self.weights = [
            first[:, None].repeat(1, copies, 1, 1),
            torch.zeros(*zeros, hidden),
            second[:, None].repeat(1, copies, 1, 1),
            torch.zeros(*zeros, classes),
        ]
        for value in self.weights:
            value.requires_grad_(True)
        decay = torch.tensor([setting.weight_decay for setting in settings])
        self.shrink = (1 - rate * decay)[None, :, None, None]
        self.keep = 1 - torch.tensor([setting.dropout for setting in settings])
        self.optimizer = torch.optim.Adam(self.weights, lr=rate, fused=True)

    def _uniform(self, shape: tuple[int, int], fan_in: int) -> Tensor:
        """Uniform by fan-in, one draw per seed, (seeds, *shape)."""
        bound = fan_in**-0.5
        draws = [torch.empty(shape).uniform_(-bound, bound, generator=g) for g in self.generators]
        return torch.stack(draws)

    def logits(self, x: Tensor, dropout: bool = False) -> Tensor:
        """(seeds, rows, dim) -> (seeds, settings, rows, classes)."""
        w1, b1, w2, b2 = self.weights
        seeds, copies, dim, hidden = w1.shape
        # all settings of a seed see the same rows: one product per seed
        flat = w1.transpose(1, 2).reshape(seeds, dim, copies * hidden)
        inside = torch.baddbmm(b1.reshape(seeds, 1, -1), x, flat).relu()
        inside = inside.view(seeds, -1, copies, hidden).transpose(1, 2)
        if dropout and (self.keep < 1).any():
            draw = torch.stack(
                [torch.rand(x.shape[1], hidden, generator=g) for g in self.generators]
            )
            keep = self.keep[None, :, None, None]
            inside = inside * ((draw[:, None] < keep) / keep)
        out = torch.baddbmm(
            b2.reshape(seeds * copies, 1, -1),
            inside.reshape(seeds * copies, -1, hidden),
            w2.reshape(seeds * copies, hidden, -1),
        )
        return out.view(seeds, copies, x.shape[1], -1)

    def finite(self) -> np.ndarray:
        """Which models have finite weights, (seeds, settings)."""
        parts = [value.detach().isfinite().flatten(2).all(2) for value in self.weights]
        return torch.stack(parts).all(0).numpy()

    def step(self, x: Tensor, y: Tensor) -> None:
        """One Adam step of every model on its rows (seeds, rows)."""
        logits = self.logits(x, dropout=True)
        wanted = y[:, None].expand(logits.shape[:3])
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 2), wanted.flatten(), reduction="none"
        )
        # models share nothing, so that the sum of their means trains each by itself
        loss = losses.view(logits.shape[:3]).mean(2).sum()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            self.weights[0].mul_(self.shrink)
            self.weights[2].mul_(self.shrink)


STRENGTHS = (0.003, 0.03, 0.3)
"""Inverse regularisation; one is chosen on validation users."""


def linear_probe(examples: Examples) -> dict[str, float]:
    """Test metrics of scikit-learn's logistic regression."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    (x_valid, y_valid), (x_test, y_test) = examples.of_part(VALID), examples.of_part(TEST)
    best, guess = -1.0, np.empty(0)
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, max_iter=100)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(*examples.of_part(TRAIN))
        valid = label_metrics(confusion(y_valid, model.predict(x_valid), examples.classes))
        if valid["f1_macro"] > best:
            best, guess = valid["f1_macro"], model.predict(x_test)
    return label_metrics(confusion(y_test, guess, examples.classes))
