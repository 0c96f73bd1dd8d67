"""Many two-layer classifiers trained at once on the same vectors: every seed with every setting.

Weights of all models lie in one tensor, so that a step is two batched matrix products. A model
depends on its own seed and setting alone: training it in other company gives the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from medapps.errors import MedappsError
from medapps.evaluate.metrics import batched_f1_macro


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
        hidden = np.maximum(x @ self.w1[seed, setting] + self.b1[seed, setting], 0)
        return softmax(hidden @ self.w2[seed, setting] + self.b2[seed, setting])


def choose(f1: np.ndarray, loss: np.ndarray, users: int) -> int:
    """The setting of least log loss among those within a standard error of the best macro F1.

    Log loss is far less noisy on few validation users, but with many classes it may like a network
    that names the frequent ones only.
    """
    best = float(f1.max())
    near = f1 >= best - (best * (1 - best) / users) ** 0.5
    return int(np.argmin(np.where(near, loss, np.inf)))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Row-wise softmax."""
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def train_mlps(
    x: np.ndarray,  # (train users, dim) float32
    y: np.ndarray,  # (train users,) int64
    x_valid: np.ndarray,
    y_valid: np.ndarray,
    classes: int,
    seeds: tuple[int, ...],
    settings: tuple[MlpSetting, ...],
    *,
    hidden: int,
    learning_rate: float,
    epochs: int,
    patience: int,
    batch: int,
    class_weight: np.ndarray | None = None,  # (classes,)
) -> MlpFit:
    """Train len(seeds) * len(settings) models with Adam; each keeps its best validation epoch."""
    stack = _Stack(x.shape[1], hidden, classes, seeds, settings, learning_rate)
    data, target = torch.from_numpy(x), torch.from_numpy(y)
    data_valid = torch.from_numpy(x_valid)
    weight = None if class_weight is None else torch.from_numpy(class_weight).float()
    shape = (len(seeds), len(settings))
    best, best_epoch = np.full(shape, -1.0), np.zeros(shape, int)
    kept = [value.detach().clone() for value in stack.weights]
    for epoch in range(1, epochs + 1):
        orders = torch.stack([torch.randperm(len(x), generator=g) for g in stack.generators])
        for start in range(0, len(x), batch):
            rows = orders[:, start : start + batch]  # (seeds, rows)
            stack.step(data[rows], target[rows], weight)
        with torch.no_grad():
            guess = stack.logits(data_valid.expand(len(seeds), -1, -1)).argmax(-1)
        score = batched_f1_macro(y_valid, guess.flatten(0, 1).numpy(), classes).reshape(shape)
        better = (score > best) & stack.finite()
        best[better], best_epoch[better] = score[better], epoch
        for value, keep in zip(stack.weights, kept, strict=True):
            chosen = torch.from_numpy(better)[(...,) + (None,) * (value.dim() - 2)]
            keep.copy_(torch.where(chosen, value.detach(), keep))
        if (epoch - best_epoch).min() >= patience:
            break
    if not best_epoch.all(axis=0).any():
        raise MedappsError(
            "Training of the labeller diverged: its weights are not finite.",
            fix=f"Lower the learning rate: --set label.learning_rate={learning_rate / 3:.2g}.",
        )
    w1, b1, w2, b2 = (value.numpy() for value in kept)
    return MlpFit(w1, b1, w2, b2, best, best_epoch)


class _Stack:
    """Weights, Adam state and random generators of all models."""

    def __init__(
        self,
        dim: int,
        hidden: int,
        classes: int,
        seeds: tuple[int, ...],
        settings: tuple[MlpSetting, ...],
        learning_rate: float,
    ) -> None:
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
        self.rate = learning_rate
        decay = torch.tensor([setting.weight_decay for setting in settings])
        self.shrink = (1 - learning_rate * decay)[None, :, None, None]
        self.keep = 1 - torch.tensor([setting.dropout for setting in settings])
        self.optimizer = torch.optim.Adam(self.weights, lr=learning_rate, fused=True)

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

    def step(self, x: Tensor, y: Tensor, weight: Tensor | None) -> None:
        """One Adam step of every model on its rows (seeds, rows)."""
        logits = self.logits(x, dropout=True)
        wanted = y[:, None].expand(logits.shape[:3])
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 2), wanted.flatten(), weight=weight, reduction="none"
        ).view(logits.shape[:3])
        scale = 1.0 if weight is None else 1 / weight[y].mean(1)[:, None, None]
        loss = (losses * scale).mean(2).sum()  # models share nothing, so the sum trains each alone
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            self.weights[0].mul_(self.shrink)
            self.weights[2].mul_(self.shrink)
