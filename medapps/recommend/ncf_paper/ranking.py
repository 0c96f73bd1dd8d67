"""Full and sampled ranking with a trained NeuMF.

Full ranking walks user by user over one tile of items at a time, with features as rows and items as
columns, so that every layer is one matrix product inside the cache; each part of the first layer is
computed once per user and once per item.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from medapps.evaluate.metrics import rank_among, realistic_rank
from medapps.recommend.ncf_paper.known_pairs import KnownPairs
from medapps.recommend.ncf_paper.network import NeuMF

TILE = 4096  # items per tile: 32 features of float32 are 512 KiB
PAIRS = 1 << 22  # scores held at a time


class Scorer:
    """A network with its item parts computed; scores blocks of users against all items."""

    @torch.no_grad()
    def __init__(self, model: NeuMF) -> None:
        self.model = model
        self.factors = model.items[:, model.mlp :].T.contiguous()  # (gmf, items)
        self.tiles: list[Tensor] = []
        if model.mlp:
            part = (model.items[:, : model.mlp] @ model.item_part).T  # (width, items)
            self.tiles = [
                part[:, start : start + TILE].contiguous()
                for start in range(0, part.shape[1], TILE)
            ]
        self.layers = [(weight, bias[:, None]) for weight, bias in model.tower_weights()]
        self.top = model.out[model.gmf :].detach()[None, :]

    @torch.no_grad()
    def scores(self, users: Tensor, service: Tensor | None) -> Tensor:
        """Logits (len(users), items); user `n_users` is the unknown one."""
        model = self.model
        user = model.users[users]
        weight = user[:, model.mlp :] * model.out[: model.gmf]
        out = torch.addmm(model.out_bias, weight, self.factors)
        if not model.mlp:
            return out
        left = torch.addmm(model.first_bias, user[:, : model.mlp], model.user_part)
        if service is not None and model.service_dim:
            left = left + service @ model.service_part
        for number, tile in enumerate(self.tiles):
            columns = slice(number * TILE, number * TILE + tile.shape[1])
            buffers = [torch.empty(tile.shape)]
            buffers += [torch.empty(len(weight), tile.shape[1]) for weight, _ in self.layers]
            for row in range(len(left)):
                torch.add(tile, left[row][:, None], out=buffers[0])
                hidden = buffers[0].relu_()
                for (weight, bias), buffer in zip(self.layers, buffers[1:], strict=True):
                    hidden = torch.addmm(bias, weight, hidden, out=buffer).relu_()
                out[row : row + 1, columns].addmm_(self.top, hidden)
        return out


def score_blocks(
    model: NeuMF, users: np.ndarray, service: Tensor | None, unknown: np.ndarray | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of (rows of `users`, logits (rows, items)); `unknown` users are scored as such."""
    scorer = Scorer(model)
    size = max(1, PAIRS // max(model.n_items, 1))
    for start in range(0, len(users), size):
        part = slice(start, min(start + size, len(users)))
        ids = torch.from_numpy(users[part].astype(np.int64))
        vectors = None if service is None else service[ids]
        if unknown is not None:
            ids = torch.where(torch.from_numpy(unknown[users[part]]), model.n_users, ids)
        yield part, scorer.scores(ids, vectors)


def count_ranks(scores: Tensor, targets: np.ndarray, seen: np.ndarray | None) -> np.ndarray:
    """Realistic rank of each row's target among the items that are not seen, (rows,).

    Writes -inf over the seen items in `scores` (rows, items); the target itself is never removed.
    NaN counts as -inf, and a target with that score ranks behind all others.
    """
    worst_nan_(scores)
    spot = torch.from_numpy(targets.astype(np.int64))[:, None]
    own = scores.gather(1, spot)
    others = torch.full((len(scores),), scores.shape[1] - 1)
    if seen is not None:
        taken = torch.from_numpy(seen)
        others -= taken.sum(1) - taken.gather(1, spot)[:, 0].long()
        scores.masked_fill_(taken, -torch.inf)
        scores.scatter_(1, spot, own)
    lost = own[:, 0].isneginf()
    better = torch.where(lost, others, (scores > own).sum(1))
    equal = torch.where(lost, 0, (scores == own).sum(1) - 1)
    return realistic_rank(better.numpy(), equal.numpy())


def worst_nan_(scores: Tensor) -> Tensor:
    """-inf in the place of NaN, which `topk` would put first."""
    return scores.masked_fill_(scores.isnan(), -torch.inf)


def full_ranks(
    model: NeuMF,
    pairs: np.ndarray,  # (n, 2): user, the item that should come first
    seen: KnownPairs,
    service: Tensor | None,
    unknown: np.ndarray | None = None,
    top: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks (n,) among all unseen items, and the `top` items (n, top) of each list."""
    ranks = np.empty(len(pairs))
    lists = np.empty((len(pairs), top), np.int32)
    for part, scores in score_blocks(model, pairs[:, 0], service, unknown):
        ranks[part] = count_ranks(scores, pairs[part, 1], seen.mask(pairs[part, 0]))
        if top:
            lists[part] = scores.topk(top, dim=1).indices.numpy()
    return ranks, lists


@torch.no_grad()
def sampled_ranks(
    model: NeuMF,
    pairs: np.ndarray,  # (n, 2)
    candidates: np.ndarray,  # (n, count) items; an entry equal to the positive is not counted
    service: Tensor | None,
    unknown: np.ndarray | None = None,
) -> np.ndarray:
    """Ranks (n,) of each positive among its candidates."""
    ranks = np.empty(len(pairs))
    for start in range(0, len(pairs), 2048):
        part = slice(start, start + 2048)
        users = pairs[part, 0].astype(np.int64)
        ids = users if unknown is None else np.where(unknown[users], model.n_users, users)
        items = np.concatenate([pairs[part, 1:], candidates[part]], axis=1).astype(np.int64)
        vectors = None if service is None else service[torch.from_numpy(users)]
        scores = model(torch.from_numpy(ids), torch.from_numpy(items), vectors).numpy()
        other = items[:, 1:] != items[:, :1]
        ranks[part] = rank_among(scores[:, :1], scores[:, 1:], other)
    return ranks
