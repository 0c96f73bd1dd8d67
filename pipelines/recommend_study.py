"""Recommendation by parts on one or several data sets, everything chosen on validation purchases.

    python pipelines/recommend_study.py DATA/lastfm-2k --cold 0.3 --out results.jsonl
    python pipelines/recommend_study.py DATA/amazon-beauty --leave-out related: --out results.jsonl

Splits the purchases, puts those for training into the graph as `takes`, trains one embedding, and
measures each part, the blend with and without vectors, and the references. Every result is a line
of JSON in `--out`; results and trainings that are there already are not made again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from medapps.recommend.purchases import Problem, make_problem
from script import options, say, start

import medapps as ma
from medapps.graph.config import GraphConfig
from medapps.recommend.lists import evaluate
from medapps.recommend.metrics import list_metrics, mean_metrics
from medapps.recommend.mixture import Mixture, bind, fit
from medapps.recommend.parts.graph_score import GraphScore, graph_score
from medapps.recommend.references import GRIDS, tune

TAKES = "takes"
CUTOFFS = (10, 20)


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
    problem = make_problem(pl.read_parquet(folder / "interactions.parquet"), given.cold)
    tag = {"data": folder.name, "seed": given.seed, "cold_share": given.cold}
    tag |= {"without": ",".join(given.without)} if given.without else {}
    book = Book(given.out, tag)
    models: dict[str, Mixture] = {}

    def no_vectors() -> Mixture:
        if "none" not in models:
            models["none"] = fit(problem.train, problem.valid, seed=given.seed)
        return models["none"]

    book.once("no vectors", lambda: measured(problem, no_vectors()))
    for name in ("collaborative", "neighbours"):
        book.once(name, partial(single, problem, no_vectors, name))
    has_graph = (folder / "triples.parquet").exists()
    for dim in given.dims if has_graph else []:
        if book.has(f"blend {dim}") and book.has(f"graph {dim}"):
            continue
        vectors = graph_vectors(problem, embedding(folder, problem, given), dim)
        model = fit(
            problem.train,
            problem.valid,
            vectors,
            problem.cold_valid,
            given=no_vectors(),
            seed=given.seed,
        )
        book.once(f"graph {dim}", partial(single, problem, model, "graph"))
        book.once(f"service {dim}", partial(single, problem, model, "service"))
        book.once(f"gmf {dim}", partial(single, problem, model, "gmf"))
        book.once(f"blend {dim}", partial(measured, problem, model))
    for name in given.references:
        book.once(f"reference {name}", partial(reference, problem, name, given.seed))


def embedding(folder: Path, problem: Problem, given: Any) -> ma.Embedding:
    """Trained on the graph and the training purchases, or taken from the workspace."""
    words = [folder.name, f"c{given.cold:g}", f"e{given.epochs}", f"s{given.seed}", *given.without]
    place = given.workspace / "recommend_study" / "-".join(words)
    if (place / "embedding").exists():
        return ma.Embedding.load(place / "embedding")
    triples = pl.read_parquet(folder / "triples.parquet").select("head", "relation", "tail")
    triples = triples.filter(~pl.col("relation").is_in(given.without))
    if given.leave_out:
        triples = triples.filter(~pl.col("tail").str.starts_with(given.leave_out))
    bought = problem.train_table().select(head="user", relation=pl.lit(TAKES), tail="item")
    place.mkdir(parents=True, exist_ok=True)
    pl.concat([triples, bought]).write_parquet(place / "triples.parquet")
    graph = ma.read_graph(place, GraphConfig())
    say(f"{folder.name}: {len(graph.train):,} triples, {problem.train.nnz:,} of them purchases")
    config = ma.MedConfig(dims=tuple(given.dims), epochs=given.epochs, threads=1)
    return ma.train_med(graph, config, seed=given.seed).save(place / "embedding")


def graph_vectors(problem: Problem, trained: ma.Embedding, dim: int) -> GraphScore:
    """The part that scores with the first `dim` coordinates."""
    takes = int(trained.relation_ids.ids([TAKES])[0])
    return graph_score(
        np.asarray(trained.entities),
        np.asarray(trained.relations[takes]),
        trained.specs[trained.dims.index(dim)],
        trained.entity_ids.ids(problem.users.names()),
        trained.entity_ids.ids(problem.items.names()),
        dim,
    )


def measured(problem: Problem, model: Mixture) -> dict[str, Any]:
    """The blend on the test purchases, of users with purchases and of cold ones."""
    known = problem.known
    out: dict[str, Any] = {"valid": model.weights.valid, "weights": model.weights.table()}
    out |= {"bounds": model.weights.bounds.tolist(), "settings": model.settings}
    out["by_bucket"] = model.weights.values.round(3).tolist()
    out["cold_weights"] = model.weights.cold.round(3).tolist()
    out["fit_seconds"] = {name: round(value, 1) for name, value in model.seconds.items()}
    for name, truth in (("full", problem.test), ("cold", problem.cold_test)):
        users = np.flatnonzero(np.diff(truth.indptr))
        if len(users):
            ids, _ = model.recommend(users, known, max(CUTOFFS))
            out[name] = mean_metrics(list_metrics(ids, truth[users], CUTOFFS))
    return out


def single(problem: Problem, model: Mixture | Callable[[], Mixture], name: str) -> dict[str, Any]:
    """One part alone."""
    model = model if isinstance(model, Mixture) else model()
    scores = bind(model, problem.known)[name]
    out: dict[str, Any] = {"setting": model.settings.get(name, {})}
    tested = {"full": problem.test} | (
        {"cold": problem.cold_test} if name in ("graph", "service", "gmf") else {}
    )
    for kind, truth in tested.items():
        if truth.nnz:
            out[kind] = mean_metrics(evaluate(scores, truth, problem.known, CUTOFFS))
    return out


def reference(problem: Problem, name: str, seed: int) -> dict[str, Any]:
    """A tuned reference on the same purchases."""
    found = tune(name, problem.train, problem.valid, seed=seed)
    scores = found.model(problem.known)
    out: dict[str, Any] = {"setting": found.setting, "valid": found.valid}
    out["fit_seconds"] = round(found.seconds, 1)
    out["full"] = mean_metrics(evaluate(scores, problem.test, problem.known, CUTOFFS))
    if name == "popularity" and problem.cold_test.nnz:
        out["cold"] = mean_metrics(evaluate(scores, problem.cold_test, problem.known, CUTOFFS))
    return out


class Book:
    """Results as lines of JSON; what is written already is not measured again."""

    def __init__(self, path: Path, tag: dict[str, Any]) -> None:
        self.path, self.tag = path, tag
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [json.loads(line) for line in lines]
        self.done = {row["what"] for row in rows if {key: row.get(key) for key in tag} == tag}

    def has(self, what: str) -> bool:
        return what in self.done

    def once(self, what: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Measure, unless it is there, and append a line."""
        if self.has(what):
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
