"""The recommender beside implicit, both on one thread, in one run.

    python benchmarks/recommend.py [DATA/douban-book] [--users 1000000] [--items 100000] [--json]

`factorise`: seconds of one training with the same number of factors, on real purchases.
`lists`: users per second of ten items each, for a catalogue drawn at random: the factorisation
alone, with fifty neighbours per item, and with the spectral filter too; a sample of the users.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from implicit.cpu.als import AlternatingLeastSquares
from scipy.sparse import csr_matrix
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

import medapps as ma
from medapps.recommend.lists import Scores, top_k
from medapps.recommend.parts.collaborative import Factoring, factorise
from medapps.recommend.parts.low_rank import LowRank
from medapps.recommend.parts.neighbours import Neighbours
from medapps.recommend.parts.spectral import Spectral
from medapps.recommend.problem import problem_of

FACTORS, K, NEIGHBOURS, SAMPLE, ROUNDS = 64, 10, 50, 4000, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?", help="a folder with interactions")
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with threadpool_limits(1):
        figures: dict[str, Any] = {"lists": lists(given.users, given.items)}
        if given.data:
            figures["factorise"] = training(given.data)
    if given.json:
        print(json.dumps(figures))
        return
    for task, values in figures.items():
        print(task)
        for name, value in values.items():
            print(f"  {name:<40} {value:12,.2f}")


def training(folder: Path) -> dict[str, float]:
    """Seconds of one factorisation with usual settings, best of some rounds."""
    train = problem_of(ma.split_purchases(folder)).train
    how = Factoring(factors=FACTORS)
    als = {"factors": FACTORS, "iterations": 15, "num_threads": 1, "random_state": 0}
    factorise(train[:50], how)  # compile
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(seconds(lambda: factorise(train, how)))
        model = AlternatingLeastSquares(**als)
        theirs.append(seconds(partial(model.fit, train, show_progress=False)))
    return {"ours": min(ours), "implicit": min(theirs), "ratio": min(ours) / min(theirs)}


def lists(users: int, items: int) -> dict[str, float]:
    """Users per second of each blend and of implicit, interleaved, best of some rounds."""
    rng = np.random.default_rng(0)
    counts = rng.integers(5, 36, users)
    pointer = np.r_[0, np.cumsum(counts)]
    column = rng.integers(0, items, pointer[-1])
    seen = csr_matrix((np.ones(len(column), np.float32), column, pointer), (users, items))
    person = rng.standard_normal((users, FACTORS)).astype(np.float32)
    product = rng.standard_normal((items, FACTORS)).astype(np.float32)
    near = rng.random((items, NEIGHBOURS)).astype(np.float32)
    place = rng.integers(0, items, (items, NEIGHBOURS))
    rows = np.arange(0, items * NEIGHBOURS + 1, NEIGHBOURS)
    matrix = csr_matrix((near.reshape(-1), place.reshape(-1), rows), (items, items))
    basis = rng.standard_normal((items, FACTORS)).astype(np.float32)
    ones = np.ones(items, np.float32)
    parts: list[Scores] = [
        LowRank(person, product),
        Neighbours(matrix).part(seen),
        Spectral(basis, ones[:FACTORS], ones).part(seen),
    ]
    model = AlternatingLeastSquares(factors=FACTORS, num_threads=1)
    model.user_factors, model.item_factors = person, product
    sample = np.sort(rng.choice(users, min(users, SAMPLE), replace=False))

    def ours(count: int) -> None:
        weights = np.full(count, 1 / count)
        top_k(parts[:count], weights, sample, seen, K)

    def theirs() -> None:
        model.recommend(sample, seen[sample], N=K, filter_already_liked_items=True)

    names = ("factorisation", "with neighbours", "with neighbours and spectral")
    tasks: dict[str, Callable[[], None]] = {
        f"ours: {name}": partial(ours, count) for count, name in enumerate(names, 1)
    }
    tasks["implicit: factorisation"] = theirs
    best: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, work in tasks.items():
            best[name] = max(best.get(name, 0.0), len(sample) / seconds(work))
    return best


def seconds(work: Callable[[], Any]) -> float:
    """How long some work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
