"""Try training settings on the validation triples of several graphs, every trial a run in MLflow.

    python pipelines/recipe_search.py DATA/fb15k-237 DATA/wn18rr --epochs 20 \\
        --set dims=10,40,160 --try lr=0.1,0.2,0.4 --try distil=0,4

Tries every combination on every graph and prints the validation MRR of each size, best mean first.
Test triples are never looked at.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

import polars as pl
from script import start

import medapps as ma
from medapps.config import parse_yaml, validate
from medapps.graph.graph import Graph
from medapps.tracking import track


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path, nargs="+", help="dataset folders (with valid)")
    parser.add_argument("--try", dest="tries", action="append", default=[], metavar="KEY=A,B")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--triples", type=int, default=2000, help="validation triples to rank")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--workspace", type=Path, default=Path("workspace"))
    given = parser.parse_args()
    fixed = {"epochs": given.epochs, "every": given.epochs, "triples": given.triples}
    fixed |= dict(_setting(item) for item in given.sets)
    combinations = _combinations(given.tries)
    rows = []
    for graph in (ma.read_graph(path) for path in given.data):
        for changes, seed in itertools.product(combinations, given.seeds):
            config = validate(ma.MedConfig, fixed | changes, "The trial")
            rows.append(trial(graph, config, changes, seed, given.workspace))
            print(rows[-1], file=sys.stderr, flush=True)
    table = pl.DataFrame(rows).sort("data", "mean", descending=[False, True])
    with pl.Config(tbl_rows=-1, tbl_cols=-1, float_precision=4, fmt_str_lengths=80):
        print(table)


def trial(
    graph: Graph, config: ma.MedConfig, changes: dict[str, Any], seed: int, workspace: Path
) -> dict[str, Any]:
    """One training: the settings that were tried, and the validation MRR of each size."""
    if not len(graph.valid):
        raise ma.MedappsError(f"{graph.name} has no validation triples to choose by.")
    name = "/".join(f"{key}={value}" for key, value in changes.items()) or "defaults"
    with track(
        workspace,
        experiment=f"{graph.name} search",
        name=name,
        params=config.plain() | {"seed": seed},
        tags={"task": "search", "data": graph.name},
    ) as run:
        figures = ma.train_med(graph, config, seed=seed, run=run).metrics
    found = {str(dim): figures[f"valid_mrr_{dim}"] for dim in config.dims}
    facts = {"data": graph.name, "trial": name, "seed": seed}
    return facts | found | {"mean": figures["valid_mrr"], "seconds": figures["train_seconds"]}


def _setting(item: str) -> tuple[str, Any]:
    key, text = _halves(item)
    return key, parse_yaml(text, key)


def _halves(item: str) -> tuple[str, str]:
    key, equals, text = item.partition("=")
    if not equals:
        raise SystemExit(f"--set and --try take KEY=VALUE, not {item!r}")
    return key, text


def _combinations(tries: list[str]) -> list[dict[str, Any]]:
    """Every way to take one value of each `KEY=A,B`; values with commas stand in brackets."""
    columns = []
    for item in tries:
        key, text = _halves(item)
        columns.append([(key, value) for value in parse_yaml(f"[{text}]", key)])
    return [dict(chosen) for chosen in itertools.product(*columns)]


if __name__ == "__main__":
    start(main)
