"""NCF against a plain PyTorch NeuMF with a DataLoader: training and full ranking, in one run.

Run: python benchmarks/ncf.py [--json] [--threads 1] [--dim 10]
The data are random with the sizes of MovieLens-1M, so that nothing has to be downloaded. Seconds
are those of the processor, not of the clock: on one thread they are the same when the machine is
idle, and they stay comparable when it is not. Plain ranking is taken twice: all items of a user in
one forward pass, and pairs in batches of 256.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from medapps.recommend.config import NcfConfig
from medapps.recommend.ncf_paper.fit import train_ncf
from medapps.recommend.ncf_paper.known_pairs import KnownPairs, draw_negatives
from medapps.recommend.ncf_paper.network import new_model
from medapps.recommend.ncf_paper.ranking import score_blocks

USERS, ITEMS = 6040, 3706


class PlainNeuMF(nn.Module):
    """NeuMF as it is usually written."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.user_mlp, self.item_mlp = nn.Embedding(USERS, 32), nn.Embedding(ITEMS, 32)
        self.user_gmf, self.item_gmf = nn.Embedding(USERS, 8), nn.Embedding(ITEMS, 8)
        layers: list[nn.Module] = []
        for a, b in ((64 + dim, 32), (32, 16), (16, 8)):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.tower, self.out = nn.Sequential(*layers), nn.Linear(16, 1)

    def forward(self, user: Tensor, item: Tensor, service: Tensor) -> Tensor:
        hidden = self.tower(torch.cat([self.user_mlp(user), self.item_mlp(item), service], 1))
        product = self.user_gmf(user) * self.item_gmf(item)
        return self.out(torch.cat([product, hidden], 1))[:, 0]


def plain_training(
    users: np.ndarray, items: np.ndarray, known: KnownPairs, service: Tensor, batch: int, steps: int
) -> float:
    """Samples per second of the usual loop; drawing the negatives is included."""
    model = PlainNeuMF(service.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_of = nn.BCEWithLogitsLoss()
    rng = np.random.default_rng(0)
    began = time.process_time()
    negatives = draw_negatives(known, users, 4, rng)
    share = steps * batch / (5 * len(users))  # of the epoch that is timed
    drawing = (time.process_time() - began) * share
    user = torch.from_numpy(np.repeat(users, 5).astype(np.int64))
    item = torch.from_numpy(np.column_stack([items, negatives]).reshape(-1).astype(np.int64))
    target = torch.zeros(len(users), 5)
    target[:, 0] = 1
    loader = DataLoader(TensorDataset(user, item, target.view(-1)), batch, shuffle=True)
    began, done = time.process_time(), 0
    for step, (u, i, wanted) in enumerate(loader):
        if step == steps:
            break
        loss = loss_of(model(u, i, service[u]), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += len(u)
    return done / (time.process_time() - began + drawing)


@torch.no_grad()
def plain_ranking(service: Tensor, count: int, batch: int = ITEMS) -> float:
    """Pairs per second of forward passes over `batch` pairs of one user and an item."""
    model, items = PlainNeuMF(service.shape[1]), torch.arange(ITEMS)
    began = time.process_time()
    for user in range(count):
        for part in items.split(batch):
            who = torch.full((len(part),), user)
            model(who, part, service[who])
    return count * ITEMS / (time.process_time() - began)


def our_ranking(service: Tensor, count: int) -> float:
    """Pairs per second of full ranking, item parts included."""
    model = new_model(USERS, ITEMS, service.shape[1], NcfConfig(), seed=0)
    began = time.process_time()
    for _ in score_blocks(model, np.arange(count), service):
        pass
    return count * ITEMS / (time.process_time() - began)


def measure(dim: int, repeats: int) -> dict[str, float]:
    """The best of several repeats of each, taken in turns."""
    rng = np.random.default_rng(0)
    users = rng.integers(0, USERS, 200_000).astype(np.int32)
    items = rng.integers(0, ITEMS, 200_000).astype(np.int32)
    known = KnownPairs.build(users, items, USERS, ITEMS)
    vectors = rng.standard_normal((USERS, dim)).astype(np.float32)
    service = torch.from_numpy(vectors)
    config = NcfConfig(epochs=1)
    found: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    for _ in range(repeats):
        began = time.process_time()
        train_ncf(users, items, known, vectors, config, seed=0)
        add("train_samples_per_second", 5 * len(users) / (time.process_time() - began))
        add(
            "plain_train_same_batch",
            plain_training(users, items, known, service, config.batch * 5, 20),
        )
        add("plain_train_batch_256", plain_training(users, items, known, service, 256, 200))
        add("rank_pairs_per_second", our_ranking(service, 300))
        add("plain_rank_whole_user", plain_ranking(service, 60))
        add("plain_rank_batch_256", plain_ranking(service, 60, 256))
    best = {name: max(values) for name, values in found.items()}
    plain = max(best["plain_train_same_batch"], best["plain_train_batch_256"])
    ranked = best["rank_pairs_per_second"]
    return best | {
        "train_ratio": best["train_samples_per_second"] / plain,
        "rank_ratio_whole_user": ranked / best["plain_rank_whole_user"],
        "rank_ratio_batch_256": ranked / best["plain_rank_batch_256"],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dim", type=int, default=10, help="size of the service vector")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    values = measure(given.dim, given.repeats)
    about = {"threads": given.threads, "dim": given.dim, "torch": torch.__version__}
    if given.json:
        print(json.dumps(about | values))
        return
    for name, value in (about | values).items():
        print(
            f"{name:30s} {value:>14,.2f}" if isinstance(value, float) else f"{name:30s} {value:>14}"
        )


if __name__ == "__main__":
    main()
