"""Digests of seeded trainings: every scorer, table, optimiser, the paper's recipe, the baselines.

    python benchmarks/digests.py DATA > before.json
    python benchmarks/digests.py DATA --compare before.json     # after a change: what differs

DATA is the folder of a small graph, such as `medapps synth` makes. The loops that are compiled are
compiled anew: loaded from a cache they may add in another order.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

BASE: dict[str, Any] = {
    "dims": (4, 12, 32),
    "epochs": 3,
    "threads": 1,
    "batch": 256,
    "chunk": 128,
    "negatives": 32,
    "device": "cpu",
}
CONFIGS: dict[str, dict[str, Any]] = {
    "transe": {},
    "transe-own": {
        "own_answer": 0.5,
        "distil": (1.0, 2.0, 0.0),
        "margin": (2.0, 3.0, 4.0),
        "temperature": (1.0, 1.5, 2.0),
        "rate_power": 0.25,
    },
    "rotate": {"scorer": "rotate"},
    "rotate-moduli": {"scorer": "rotate", "norm": "moduli", "from_larger": 0.5},
    "pairre": {"scorer": "pairre", "drop": 0.2, "keep_length": True, "relation_rate": 4.0},
    "pairre-l1": {"scorer": "pairre", "norm": "l1", "drop": (0.1, 0.2, 0.3)},
    "simple": {"scorer": "simple", "penalty": 1e-3, "drop": 0.1},
    "distmult": {"scorer": "distmult"},
    "complex": {"scorer": "complex", "penalty": 1e-3},
    "bf16": {"table": "bf16"},
    "mmap": {"table": "mmap"},
    "lazy_adam": {
        "optimiser": "lazy_adam",
        "lr": 0.01,
        "ml_down": 0.3,
        "ml_up": 0.1,
        "negative_weights": "smaller",
        "positive_weights": "prob",
        "dlw": "literal",
    },
    "patience": {"patience": 1, "every": 1},
}
BASELINES = ("dt", "bkd", "dualde", "iterde", "ta", "pca", "ext", "ext-v")


def digest(*tables: np.ndarray | None) -> str:
    """The first half of a SHA-256 over the bytes of some tables."""
    found = hashlib.sha256()
    for table in tables:
        if table is not None:
            found.update(np.ascontiguousarray(table).tobytes())
    return found.hexdigest()[:32]


def digests(folder: Path) -> Iterator[tuple[str, str]]:
    """Name and digest of one training after another."""
    import medapps as ma
    from medapps.train.config import paper

    graph = ma.read_graph(folder, ma.GraphConfig(interactions="off"))
    configs = {name: ma.MedConfig(**(BASE | given)) for name, given in CONFIGS.items()}
    kept = {key: BASE[key] for key in ("dims", "epochs", "threads", "device")}
    for name, config in (configs | {"paper": paper(**kept)}).items():
        made = ma.train_med(graph, config, seed=3)
        yield name, digest(made.entities, made.relations)
    for scorer in ("transe", "rotate"):
        train = ma.MedConfig(**BASE, scorer=scorer)
        for name in BASELINES:
            crop = ma.make_baseline(name, graph, 8, train=train, seed=1)
            yield f"{name}-{scorer}", digest(crop.entities, crop.relations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--compare", type=Path, help="what an earlier run printed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["NUMBA_CACHE_DIR"] = cache
        found = dict(digests(given.data))
    print(json.dumps(found, indent=1))
    if given.compare is not None:
        before = json.loads(given.compare.read_text())
        other = [name for name in before if found.get(name) != before[name]]
        print(f"{len(before) - len(other)} of {len(before)} are equal.", *other, file=sys.stderr)
        sys.exit(bool(other))


if __name__ == "__main__":
    main()
