"""Time and memory of filtered ranking at four sizes in one sweep, beside four sweeps of one size.

    python benchmarks/rank.py --json                  # a graph of FB15k-237's size, made up
    python benchmarks/rank.py --data fb15k-237 --json  # the real one, under MEDAPPS_DATA

The tables are random: ranking takes the same time whatever they hold.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from medapps.evaluate.filtered_ranking import Tables, rank_tables
from medapps.graph.graph import KnownTriples
from medapps.model.rule import ScoreSpec
from medapps.train.memory import keep_pages, peak_rss_bytes

import torch  # isort: skip  (medapps sets how threads wait before torch starts them)

DIMS = (10, 40, 160, 640)
SHAPE = (14_541, 237, 272_115, 20_466)
"""Entities, relations, training and test triples of FB15k-237."""


def made_up() -> tuple[int, int, np.ndarray, KnownTriples]:
    """Entities, relations, test triples and the index of all triples."""
    entities, relations, train, test = SHAPE
    draws = np.random.default_rng(0)
    triples = draws.integers(0, entities, (train + test, 3), np.int32)
    triples[:, 1] = draws.integers(0, relations, train + test, np.int32)
    return entities, relations, triples[train:], KnownTriples.of(triples, entities)


def real(folder: Path) -> tuple[int, int, np.ndarray, KnownTriples]:
    """The same of a data set."""
    from medapps.graph.read import read_graph

    graph = read_graph(folder)
    return len(graph.entities), len(graph.relations), np.asarray(graph.test), graph.known


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of one sweep over all sizes and of a sweep per size."""
    torch.set_num_threads(arguments.threads)
    keep_pages()
    folder = Path(os.environ.get("MEDAPPS_DATA", ".")) / arguments.data if arguments.data else None
    entities, relations, triples, known = made_up() if folder is None else real(folder)
    triples = triples[: arguments.triples]
    draws = np.random.default_rng(1)
    e = draws.standard_normal((entities, DIMS[-1])).astype(np.float32)
    r = draws.standard_normal((relations, DIMS[-1])).astype(np.float32)
    specs = tuple(ScoreSpec() for _ in DIMS)
    before = peak_rss_bytes()
    wall, cpu = perf_counter(), process_time()
    together = rank_tables(Tables(e, r, DIMS, specs), triples, known)
    wall, cpu = perf_counter() - wall, process_time() - cpu
    separate = perf_counter()
    for i, dim in enumerate(DIMS):
        alone = rank_tables(Tables(e, r, (dim,), (specs[i],)), triples, known)
        assert np.array_equal(alone.ranks[0], together.ranks[i])
    separate = perf_counter() - separate
    return {
        "entities": entities,
        "triples": len(triples),
        "dims": list(DIMS),
        "threads": arguments.threads,
        "load": os.getloadavg()[0],
        "seconds": wall,
        "cpu_seconds": cpu,
        "queries_per_second": 2 * len(triples) / wall,
        "separate_seconds": separate,
        "together_over_separate": wall / separate,
        "peak_rss_growth_bytes": peak_rss_bytes() - before,
        "peak_rss_bytes": peak_rss_bytes(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--data", help="a data set folder under MEDAPPS_DATA")
    parser.add_argument("--triples", type=int, default=2**31, help="rank only the first ones")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    result = measure(arguments := parser.parse_args())
    if arguments.json:
        json.dump(result, sys.stdout, indent=1)
        print()
        return
    for name, value in result.items():
        print(f"{name:28} {value if not isinstance(value, float) else round(value, 3)}")


if __name__ == "__main__":
    main()
