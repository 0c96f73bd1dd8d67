"""Recommendation on one or several data sets, everything chosen on validation purchases.

    python pipelines/recommend_study.py DATA/lastfm-2k --cold 0.3 --out results.jsonl
    python pipelines/recommend_study.py DATA/amazon-beauty --leave-out related: --out results.jsonl

Splits the purchases once, trains one embedding on the graph with those for training, and measures
the graph alone and the recommender at each size, the recommender without vectors, and the
references. Every result is a line of JSON in `--out`; results and trainings that are there already
are not made again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import polars as pl
from script import options, say, start

import medapps as ma
from medapps.graph.read import GRAPH_FILES, graph_files
from medapps.graph.split import PurchaseSplit
from medapps.graph.tables import find_table
from medapps.recommend.evaluation.references import GRIDS
from medapps.recommend.run import reference_report, train_recommender

MODELS = ("graph", "ncf")


def main() -> None:
    parser = options(__doc__, many=True)
    parser.add_argument("--out", type=Path, default=Path("recommend.jsonl"))
    parser.add_argument("--cold", type=float, default=0.0, help="share of users that are cold")
    parser.add_argument("--leave-out", default="", help="tails that begin so are left out")
    parser.add_argument("--without", nargs="*", default=[], help="relations that are left out")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dims", type=int, nargs="+", default=[10, 100, 500])
    parser.add_argument("--references", nargs="*", default=list(GRIDS))
    given = parser.parse_args()
    for folder in given.data:
        study(folder, given)


def study(folder: Path, given: Any) -> None:
    """All results of one data set."""
    split = ma.split_purchases(folder, ma.SplitConfig(cold_share=given.cold))
    tag = {"data": folder.name, "seed": given.seed, "cold_share": given.cold}
    tag |= {"without": ",".join(given.without)} if given.without else {}
    tag |= {"leave_out": given.leave_out} if given.leave_out else {}
    book = Book(given.out, tag)

    @cache
    def trained() -> ma.Embedding:
        return embedding(folder, split, given)

    def task(model: str, dim: int = 0) -> dict[str, Any]:
        config = ma.RecommendConfig(model=model, references=())
        source = trained().crop(dim) if dim else None
        return told(train_recommender(source, split, config, seed=given.seed).report)

    def reference(name: str) -> dict[str, Any]:
        return told(reference_report(name, split, ma.RecommendConfig(), seed=given.seed))

    book.once("without vectors", partial(task, "ncf"))
    has_graph = find_table(folder, GRAPH_FILES) is not None
    for dim in given.dims if has_graph else []:
        for model in MODELS:
            book.once(f"{model} {dim}", partial(task, model, dim))
    for name in given.references:
        book.once(f"reference {name}", partial(reference, name))


def embedding(folder: Path, split: PurchaseSplit, given: Any) -> ma.Embedding:
    """Trained on the graph and the training purchases, or taken from the workspace."""
    words = [folder.name, f"c{given.cold:g}", f"e{given.epochs}", f"s{given.seed}", *given.without]
    words += [given.leave_out.strip(":")] if given.leave_out else []
    words += ["-".join(map(str, given.dims))]
    place = given.workspace / "recommend_study" / "-".join(words)
    if (place / "embedding").exists():
        return ma.Embedding.load(place / "embedding")
    place.mkdir(parents=True, exist_ok=True)
    if given.without or given.leave_out:
        triples = pl.read_parquet(graph_files(folder)["train"]).select("head", "relation", "tail")
        triples = triples.filter(~pl.col("relation").is_in(given.without))
        if given.leave_out:
            triples = triples.filter(~pl.col("tail").str.starts_with(given.leave_out))
        triples.write_parquet(place / "triples.parquet")
        folder = place
    graph = ma.read_graph(folder, ma.GraphConfig(interactions="on"), split)
    added = graph.notes["interactions_added"]
    say(f"{place.name}: {len(graph.train):,} triples, {added:,} of them purchases")
    config = ma.MedConfig(dims=tuple(given.dims), epochs=given.epochs, threads=1)
    return ma.train_med(graph, config, seed=given.seed).save(place / "embedding")


def told(report: ma.Report) -> dict[str, Any]:
    """What a report says, by kind of user."""
    out: dict[str, Any] = {}
    for name, value in report.metrics.items():
        kind, _, metric = name.partition(".")
        out.setdefault(kind, {})[metric] = value
    kept = ("valid", "parts", "setting", "notes")
    out |= {key: report.details[key] for key in kept if key in report.details}
    return out | {"fit_seconds": round(report.cost["train_seconds"], 1)}


class Book:
    """Results as lines of JSON; what is written already is not measured again."""

    def __init__(self, path: Path, tag: dict[str, Any]) -> None:
        self.path, self.tag = path, tag
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [json.loads(line) for line in lines]
        self.done = {row["what"] for row in rows if {key: row.get(key) for key in tag} == tag}

    def once(self, what: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Measure, unless it is there, and append a line."""
        if what in self.done:
            return
        began = time.perf_counter()
        row = self.tag | {"what": what} | measure()
        row["seconds"] = round(time.perf_counter() - began, 1)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.done.add(what)
        figures = [
            f"{kind} {row[kind]['ndcg_at_10']:.4f}/{row[kind]['recall_at_10']:.4f}"
            f"/{row[kind]['hit_at_10']:.4f}"
            for kind in ("full", "cold")
            if kind in row
        ]
        say(f"{row['data']} {what}: {', '.join(figures)} ({row['seconds']} s)")


if __name__ == "__main__":
    start(main)
