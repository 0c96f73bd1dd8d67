"""NeuMF (He et al. 2017) whose MLP tower also reads a service vector of the user.

    first layer   h = relu(P u + Q i + S s + b)        P, Q, S: its user, item and service parts
    tower         h = relu(W h + b) ...
    logit         w . [p * q ; h] + b                  p, q: the factors of the GMF tower

Because the first layer is a sum of three parts, full ranking computes each part once per user or
item and never a pair twice.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from medapps.recommend.config import NcfConfig


class NeuMF(nn.Module):
    """The network; row `n_users` of the user table is the unknown user."""

    def __init__(self, n_users: int, n_items: int, service_dim: int, config: NcfConfig) -> None:
        super().__init__()
        self.n_users, self.n_items, self.service_dim = n_users, n_items, service_dim
        self.gmf = config.factors if config.mode != "mlp" else 0
        self.mlp = config.embed if config.mode != "gmf" else 0
        # columns: first the MLP vector, then the GMF vector
        self.users = nn.Parameter(torch.empty(n_users + 1, self.mlp + self.gmf))
        self.items = nn.Parameter(torch.empty(n_items, self.mlp + self.gmf))
        widths = list(config.layers) if self.mlp else []
        if self.mlp:
            self.user_part = nn.Parameter(torch.empty(self.mlp, widths[0]))
            self.item_part = nn.Parameter(torch.empty(self.mlp, widths[0]))
            self.first_bias = nn.Parameter(torch.empty(widths[0]))
        if self.mlp and service_dim:
            self.service_part = nn.Parameter(torch.empty(service_dim, widths[0]))
        self.tower = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.out = nn.Parameter(torch.empty(self.gmf + (widths[-1] if widths else 0)))
        self.out_bias = nn.Parameter(torch.zeros(()))

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        """Initial values: tables N(0, 0.01), output LeCun uniform, layers uniform by fan-in."""
        for name, value in self.named_parameters():
            if name in ("users", "items"):
                value.normal_(0, 0.01, generator=generator)
            elif name == "out":
                bound = (3 / max(len(self.out), 1)) ** 0.5
                value.uniform_(-bound, bound, generator=generator)
            elif name == "out_bias":
                value.zero_()
            elif name == "service_part":
                value.uniform_(-1, 1, generator=generator).mul_(value.shape[0] ** -0.5)
            elif name in ("user_part", "item_part", "first_bias"):
                bound = (2 * self.mlp) ** -0.5
                value.uniform_(-bound, bound, generator=generator)
            else:  # hidden layers of the tower
                weight = self.get_parameter(name.rpartition(".")[0] + ".weight")
                bound = weight.shape[1] ** -0.5
                value.uniform_(-bound, bound, generator=generator)

    def forward(self, users: Tensor, items: Tensor, service: Tensor | None) -> Tensor:
        """Logits of `items` (batch, k) for `users` (batch,) with service vectors (batch, dim)."""
        user, item = embedding(users, self.users), embedding(items, self.items)
        parts = []
        if self.gmf:
            weight = user[:, self.mlp :] * self.out[: self.gmf]  # (batch, gmf)
            parts.append((item[..., self.mlp :] * weight.unsqueeze(1)).sum(2))
        if self.mlp:
            left = torch.addmm(self.first_bias, user[:, : self.mlp], self.user_part)
            if service is not None and self.service_dim:
                left = left + service @ self.service_part
            hidden = item[..., : self.mlp] @ self.item_part + left.unsqueeze(1)
            parts.append(self.climb(hidden) @ self.out[self.gmf :])
        return sum(parts, start=self.out_bias)

    def tower_weights(self) -> list[tuple[Tensor, Tensor]]:
        """Weight (out, in) and bias (out,) of each layer after the first."""
        names = [f"tower.{number}" for number in range(len(self.tower))]
        return [
            (self.get_parameter(f"{name}.weight"), self.get_parameter(f"{name}.bias"))
            for name in names
        ]

    def climb(self, hidden: Tensor) -> Tensor:
        """From the first layer before its relu to the top of the tower, (..., width)."""
        hidden = torch.relu(hidden)
        for layer in self.tower:
            hidden = torch.relu(layer(hidden))
        return hidden


def new_model(n_users: int, n_items: int, service_dim: int, config: NcfConfig, seed: int) -> NeuMF:
    """A NeuMF with initial values that depend on the seed alone."""
    model = NeuMF(n_users, n_items, service_dim, config)
    model.reset(torch.Generator().manual_seed(seed))
    return model


def decay_groups(model: NeuMF, config: NcfConfig) -> list[dict]:
    """Parameter groups for AdamW: the tables of users and items each have their own decay."""
    decay = {"users": config.user_decay, "items": config.item_decay}
    groups: dict[float, list[nn.Parameter]] = {}
    for name, value in model.named_parameters():
        groups.setdefault(decay.get(name, 0.0), []).append(value)
    return [{"params": values, "weight_decay": rate} for rate, values in groups.items()]


def arrays_of(model: NeuMF) -> dict[str, np.ndarray]:
    """All weights as NumPy arrays, by name."""
    return {name: value.detach().numpy() for name, value in model.named_parameters()}
