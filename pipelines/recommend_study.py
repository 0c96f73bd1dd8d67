"""Recommendation on one or several data sets, everything chosen on validation purchases.

    python pipelines/recommend_study.py DATA/lastfm-2k --cold 0.3 --out results.jsonl
    python pipelines/recommend_study.py DATA/amazon-beauty --leave-out related: --out results.jsonl

Splits the purchases once, trains one embedding on the graph with those for training, and measures
the graph alone and the recommender at each size, the recommender without vectors, and the
references. Every result is a line of JSON in `--out`, with the values of every user in a file
beside it; results and trainings that are there already are not made again. `--table` prints what is
there: means over seeds, and paired tests against no vectors and against the best reference.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from script import options, say, start

import medapps as ma
from medapps.evaluate.statistics import Measured, draw_values, interval
from medapps.graph.read import GRAPH_FILES, graph_files
from medapps.graph.split import PurchaseSplit
from medapps.graph.tables import find_table
from medapps.recommend.evaluation.references import GRIDS
from medapps.recommend.run import reference_report, train_recommender

METRICS = ("ndcg_at_10", "recall_at_10", "hit_at_10")
UNITS = ("full.ndcg_at_10", "cold.ndcg_at_10")
"""Values per user that are kept."""


def main() -> None:
    parser = options(__doc__, many=True)
    parser.add_argument("--out", type=Path, default=Path("recommend.jsonl"))
    parser.add_argument("--cold", type=float, default=0.0, help="share of users that are cold")
    parser.add_argument("--core", type=int, default=0, help="least purchases of users and items")
    parser.add_argument("--leave-out", default="", help="tails that begin so are left out")
    parser.add_argument("--without", nargs="*", default=[], help="relations that are left out")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dims", type=int, nargs="+", default=[10, 100, 500])
    parser.add_argument("--references", nargs="*", default=list(GRIDS))
    parser.add_argument("--models", nargs="*", default=["graph", "ncf"])
    parser.add_argument("--table", action="store_true", help="print the results that are there")
    given = parser.parse_args()
    if given.table:
        print(table(given.out))
        return
    for folder in given.data:
        study(folder, given)


def study(folder: Path, given: Any) -> None:
    """All results of one data set."""
    split = ma.split_purchases(folder, ma.SplitConfig(cold_share=given.cold, core=given.core))
    tag = {"data": folder.name, "seed": given.seed, "cold_share": given.cold}
    tag |= {"without": ",".join(given.without)} if given.without else {}
    tag |= {"leave_out": given.leave_out} if given.leave_out else {}
    tag |= {"core": given.core} if given.core else {}
    book = Book(given.out, tag)

    @cache
    def trained() -> ma.Embedding:
        return embedding(folder, split, given)

    def task(model: str, dim: int = 0) -> ma.Report:
        config = ma.RecommendConfig(model=model, references=())
        source = trained().crop(dim) if dim else None
        return train_recommender(source, split, config, seed=given.seed).report

    def reference(name: str) -> ma.Report:
        return reference_report(name, split, ma.RecommendConfig(), seed=given.seed)

    book.once("without vectors", partial(task, "ncf"))
    has_graph = find_table(folder, GRAPH_FILES) is not None
    for dim in given.dims if has_graph else []:
        for model in given.models:
            book.once(f"{model} {dim}", partial(task, model, dim))
    for name in given.references:
        book.once(f"reference {name}", partial(reference, name))


def embedding(folder: Path, split: PurchaseSplit, given: Any) -> ma.Embedding:
    """Trained on the graph and the training purchases, or taken from the workspace."""
    words = [folder.name, f"c{given.cold:g}", f"e{given.epochs}", f"s{given.seed}", *given.without]
    words += [given.leave_out.strip(":")] if given.leave_out else []
    words += [f"k{given.core}"] if given.core else []
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
        self.path, self.tag, self.units = path, tag, path.with_suffix("")
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [json.loads(line) for line in lines]
        self.done = {row["what"] for row in rows if {key: row.get(key) for key in tag} == tag}

    def once(self, what: str, measure: Callable[[], ma.Report]) -> None:
        """Measure, unless it is there, keep the values per user, and append a line."""
        if what in self.done:
            return
        began = time.perf_counter()
        report = measure()
        row = self.tag | {"what": what} | told(report)
        users = {name: report.units[name][0] for name in UNITS if name in report.units}
        self.units.mkdir(exist_ok=True)
        np.savez(units_file(self.units, row), **users)
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


def units_file(folder: Path, row: dict[str, Any]) -> Path:
    """Where the values per user of a result are kept."""
    words = [row["data"], row.get("without", ""), row["what"], row["seed"]]
    return folder / ("-".join(str(word) for word in words).replace(" ", "_") + ".npz")


def table(out: Path) -> str:
    """Every method of every data set: mean over seeds, and whether it differs (paired)."""
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    lines = [
        "| data | method | seeds | ndcg@10 | recall@10 | hit@10 | against none | best reference |"
    ]
    lines += ["|" + "---|" * 8]
    for data in dict.fromkeys((row["data"], row.get("without", "")) for row in rows):
        own = [row for row in rows if (row["data"], row.get("without", "")) == data]
        for kind in ("full", "cold"):
            lines += _lines(kind, [row for row in own if kind in row], out.with_suffix(""))
    return "\n".join(lines)


def _lines(kind: str, rows: list[dict[str, Any]], folder: Path) -> list[str]:
    """Rows of one data set and kind of user."""
    methods: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        methods.setdefault(row["what"], []).append(row)
    units = {
        what: [np.load(units_file(folder, row))[f"{kind}.ndcg_at_10"] for row in runs]
        for what, runs in methods.items()
    }
    means = {what: float(np.mean(values)) for what, values in units.items()}
    known = [what for what in means if what.startswith("reference")]
    best = max(known, key=means.__getitem__, default="")
    lines = []
    for what, runs in methods.items():
        figures = [f"{np.mean([run[kind][name] for run in runs]):.4f}" for name in METRICS]
        verdicts = [_verdict(units, what, other) for other in ("without vectors", best)]
        words = [runs[0]["data"], runs[0].get("without", ""), "" if kind == "full" else kind]
        name = " ".join(word for word in words if word)
        lines.append(_row([name, what, len(runs), *figures, *verdicts]))
    return lines


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _verdict(units: dict[str, list[np.ndarray]], what: str, other: str) -> str:
    """The difference of two methods with its interval, users and trainings drawn again."""
    if other not in units or what == other:
        return ""
    made = [Measured.mean(units[name], name, range(len(units[name]))) for name in (what, other)]
    one, two = draw_values(made)
    low, high = interval(one - two)
    word = "better" if low > 0 else "worse" if high < 0 else "level"
    return f"{word} ({low:+.4f} to {high:+.4f})"


if __name__ == "__main__":
    start(main)
