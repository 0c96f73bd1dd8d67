"""Training of NeuMF: fresh verified negatives per epoch, no DataLoader, early stopping."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from medapps.errors import MedappsError
from medapps.recommend.config import NcfConfig
from medapps.recommend.ncf_paper.known_pairs import KnownPairs, draw_negatives
from medapps.recommend.ncf_paper.network import NeuMF, decay_groups, new_model

LEAST_BATCH = 64


@dataclass(frozen=True)
class NcfFit:
    """A trained network with the service vectors it read and the story of its training."""

    model: NeuMF
    service: Tensor | None  # (n_users, dim)
    epoch: int  # the epoch whose weights these are, 0 = untrained
    history: list[dict[str, float]]  # one row per epoch
    seconds: float
    samples_per_second: float


def train_ncf(
    users: np.ndarray,  # (positives,)
    items: np.ndarray,  # (positives,)
    known: KnownPairs,
    service: np.ndarray | None,  # (n_users, dim) float32
    config: NcfConfig,
    seed: int,
    validate: Callable[[NeuMF, Tensor | None], float] | None = None,
    on_epoch: Callable[[int, dict[str, float]], None] | None = None,
) -> NcfFit:
    """Train on the positives; keep the weights of the epoch that `validate` likes best."""
    table = None if service is None else torch.from_numpy(np.ascontiguousarray(service))
    model = new_model(
        known.n_users, known.n_items, 0 if table is None else table.shape[1], config, seed
    )
    optimizer = torch.optim.AdamW(decay_groups(model, config), lr=config.learning_rate, fused=True)
    mean = _Average(model, config.average)
    rng = np.random.default_rng(seed)
    history: list[dict[str, float]] = []
    best, best_epoch, waited = -np.inf, 0, 0
    kept = _snapshot(model)
    started, trained = time.perf_counter(), 0.0
    for epoch in range(1, config.epochs + 1):
        begun = time.perf_counter()
        loss, sample_seconds = _run_epoch(
            model, optimizer, users, items, known, table, config, rng, mean
        )
        seconds = time.perf_counter() - begun
        trained += seconds
        row = {
            "loss": loss,
            "train_seconds": seconds,
            "sample_seconds": sample_seconds,
            "samples_per_second": len(users) * (1 + config.negatives) / seconds,
        }
        with mean.shown():
            if validate is not None:
                row["valid"] = validate(model, table)
            history.append(row)
            if on_epoch is not None:
                on_epoch(epoch, row)
            if validate is None or row["valid"] > best:
                best, best_epoch, waited = row.get("valid", 0.0), epoch, 0
                kept = _snapshot(model)
            else:
                waited += 1
        if waited >= config.patience:
            break
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(kept[name])
    rate = len(history) * len(users) * (1 + config.negatives) / max(trained, 1e-9)
    return NcfFit(model, table, best_epoch, history, time.perf_counter() - started, rate)


class _Average:
    """Running mean of the weights (bias corrected), shown in their place while it is validated."""

    def __init__(self, model: NeuMF, memory: float) -> None:
        self.memory, self.steps = memory, 0
        self.live = [value.data for value in model.parameters()] if memory else []
        self.mean = [value.clone() for value in self.live]

    def update(self) -> None:
        if self.live:
            self.steps += 1
            memory = min(self.memory, self.steps / (self.steps + 9))  # forget the start soon
            torch._foreach_lerp_(self.mean, self.live, 1 - memory)

    @contextmanager
    def shown(self) -> Iterator[None]:
        own = [value.clone() for value in self.live]
        for value, mean in zip(self.live, self.mean, strict=True):
            value.copy_(mean)
        yield
        for value, saved in zip(self.live, own, strict=True):
            value.copy_(saved)


def _snapshot(model: NeuMF) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def _run_epoch(
    model: NeuMF,
    optimizer: torch.optim.Optimizer,
    users: np.ndarray,
    items: np.ndarray,
    known: KnownPairs,
    table: Tensor | None,
    config: NcfConfig,
    rng: np.random.Generator,
    mean: _Average,
) -> tuple[float, float]:
    """One epoch over the positives in a new order; mean loss and seconds spent on sampling."""
    begun = time.perf_counter()
    order = rng.permutation(len(users))
    rows = users[order]
    choices = np.empty((len(users), 1 + config.negatives), dtype=np.int64)
    choices[:, 0] = items[order]
    choices[:, 1:] = draw_negatives(known, rows, config.negatives, rng)
    owner = torch.from_numpy(rows.astype(np.int64))  # whose service vector is read
    reader = owner  # whose user vector is read
    if config.user_dropout:
        hidden = torch.from_numpy(rng.random(len(rows)) < config.user_dropout)
        reader = torch.where(hidden, known.n_users, owner)
    picks = torch.from_numpy(choices)
    sampled = time.perf_counter() - begun
    batch = min(config.batch, max(LEAST_BATCH, len(rows) // 100))
    target = torch.zeros(batch, 1 + config.negatives)
    target[:, 0] = 1
    total = 0.0
    for start in range(0, len(rows), batch):
        part = slice(start, start + batch)
        vectors = None if table is None else table[owner[part]]
        logits = model(reader[part], picks[part], vectors)
        loss = binary_cross_entropy_with_logits(logits, target[: len(logits)])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        mean.update()
        total += loss.item() * len(logits)
    if not np.isfinite(total) or not all(value.isfinite().all() for value in model.parameters()):
        raise MedappsError(
            "Training of the recommender diverged: its loss or weights are not finite.",
            fix="Lower it with --set recommend.ncf.learning_rate=0.0005",
        )
    return total / max(len(rows), 1), sampled
