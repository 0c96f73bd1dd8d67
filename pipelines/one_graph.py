"""The whole chain on one data set, top to bottom: train once, crop, baselines, tasks, table.

    python pipelines/one_graph.py DIR                    (skg, labels and interactions in DIR)
    python pipelines/one_graph.py DIR --epochs 5 --seeds 1

`medapps run` does the same with MLflow, resumption and every baseline; this script is the short
version to copy from.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from script import start

import medapps as ma
from medapps.comparison.grid import markdown
from medapps.graph.user_tables import read_interactions, read_labels


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path, help="a dataset folder")
    parser.add_argument("--dims", type=int, nargs="+", default=[10, 100, 500])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each method")
    parser.add_argument("--task-epochs", type=int, default=30, help="epochs of a task's network")
    parser.add_argument("--label", default=None, help="label column; else the first")
    given = parser.parse_args()

    graph = ma.read_graph(given.data)
    labels = read_labels(given.data, graph)
    purchases = read_interactions(given.data, graph)
    train = ma.MedConfig(dims=tuple(given.dims), epochs=given.epochs)
    label = ma.LabelConfig(column=given.label, controls=False, epochs=given.task_epochs)

    reports = []
    for seed in range(given.seeds):
        embedding = ma.train_med(graph, train, seed=seed)
        crops = [embedding.crop(dim) for dim in train.dims]
        teacher = ma.make_baseline("dt", graph, train.dims[-1], train=train, seed=seed)
        crops.append(teacher)
        for dim in train.dims[:-1]:
            crops.append(ma.make_baseline("dt", graph, dim, train=train, seed=seed))
            for name in ("pca", "dualde"):
                crops.append(
                    ma.make_baseline(name, graph, dim, train=train, seed=seed, teacher=teacher)
                )
        for crop in crops:
            cost = {"train_seconds": crop.about["train_seconds"], "bytes": crop.nbytes}
            for report in (
                ma.label_users(crop, labels, label, seeds=(seed,), data=graph.name),
                ma.recommend_products(crop, purchases, seed=seed, data=graph.name),
            ):
                details = report.details | {"training": seed}
                reports.append(replace(report, cost=cost, details=details))
    print(markdown(ma.compare(reports)))


if __name__ == "__main__":
    start(main)
