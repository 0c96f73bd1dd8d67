"""Link prediction: every size of one training on the whole test set, beside the sizes alone.

python pipelines/link_prediction.py DIR --dims 10 40 160 640      (train, valid, test in DIR)
"""

from __future__ import annotations

import argparse
from pathlib import Path

from script import start

import medapps as ma
from medapps.comparison.grid import markdown


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path, help="a dataset folder with test triples")
    parser.add_argument("--dims", type=int, nargs="+", default=[10, 40, 160, 640])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--limit", type=int, default=None, help="test triples to rank; else all")
    given = parser.parse_args()

    graph = ma.read_graph(given.data)
    train = ma.MedConfig(dims=tuple(given.dims), epochs=given.epochs)
    embedding = ma.train_med(graph, train)
    reports, figures = ma.rank_embedding(embedding, graph, limit=given.limit)
    for dim in train.dims:
        alone = ma.make_baseline("dt", graph, dim, train=train)
        reports += ma.rank_crop(alone, graph, limit=given.limit)[0]
    print(markdown(ma.compare(reports)))
    print(f"Of what a smaller size has in its top ten, larger ones keep {figures['arr']:.1%}.")


if __name__ == "__main__":
    start(main)
