"""How good are entities that come later? A tenth of a graph is withheld, then `grow` takes it in.

    python pipelines/grow_study.py DATA/fb15k-237 DATA/ciao DATA/lastfm-2k --out grow.jsonl

Against training again with everything, on what concerns new entities: MRR of test triples, ndcg@10
of purchases by the embedding's own score, and F1 of labels read by a labeller that was trained
before the growth. Then the same tenth in ten parts, one after the other, and a refresh. A line of
JSON for every figure; what the file has already is not computed again. Seconds are those of the
processor, on one thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from script import say, start

import medapps as ma
from medapps.evaluate.link_prediction import rank_embedding
from medapps.graph.split import TEST, PurchaseSplit
from medapps.graph.tables import find_table
from medapps.label.run import train_labeller
from medapps.recommend.config import RecommendConfig
from medapps.store import Provenance

EPOCHS = {"ciao": 16}
STEPS = 10
OTHER = 5
"""Of the test triples without new entities, one in so many is ranked."""


@dataclass(frozen=True)
class Withheld:
    """A graph whose last entities, in the order of their coming, are withheld."""

    whole: ma.Graph
    """In this order."""
    first: int
    """Entities that are not withheld."""

    @classmethod
    def of(cls, graph: ma.Graph, share: float) -> Withheld:
        """Withhold a random share of the entities."""
        count = len(graph.entities)
        late = np.zeros(count, bool)
        late[np.random.default_rng(0).choice(count, round(share * count), replace=False)] = True
        before = graph.entities.subset(np.flatnonzero(~late))
        draws = np.random.default_rng(1).permutation(np.flatnonzero(late))
        for part in np.array_split(draws, STEPS):
            before = before.appended(graph.entities.names(part))
        place = before.ids(graph.entities.names())
        moved = {
            split: np.stack([place[rows[:, 0]], rows[:, 1], place[rows[:, 2]]], 1).astype(np.int32)
            for split in ("train", "valid", "test")
            if (rows := getattr(graph, split)) is not None
        }
        users = np.sort(place[graph.users]).astype(np.int32)
        whole = replace(graph, entities=before, users=users, **moved)
        return cls(whole, count - int(late.sum()))

    def until(self, count: int) -> ma.Graph:
        """What is known when the first `count` entities are there."""
        graph = self.whole
        ids = np.arange(count)
        parts = {}
        for split in ("train", "valid", "test"):
            rows = getattr(graph, split)
            parts[split] = rows[(rows[:, [0, 2]] < count).all(1)]
        users = graph.users[graph.users < count]
        return replace(graph, entities=graph.entities.subset(ids), users=users, **parts)

    def counts(self) -> list[int]:
        """How many entities there are after each of the steps."""
        late = len(self.whole.entities) - self.first
        sizes = [len(part) for part in np.array_split(np.arange(late), STEPS)]
        return (self.first + np.cumsum(sizes)).tolist()


def mrr(made: ma.Embedding, given: Withheld) -> dict[str, float]:
    """MRR by size: of test triples with new entities, and of a part of the others."""
    test = given.whole.test
    new = (test[:, [0, 2]] >= given.first).any(1)
    out: dict[str, float] = {}
    for name, rows in (("new", test[new]), ("old", test[~new][::OTHER])):
        known = np.concatenate([given.whole.valid, test])  # all are left out of the ranking
        reports, _ = rank_embedding(made, replace(given.whole, test=rows, valid=known))
        out |= {f"mrr_{name}_{report.dim}": report.metrics["mrr"] for report in reports}
    return out


def ndcg(made: ma.Embedding, given: Withheld, split: PurchaseSplit) -> dict[str, float]:
    """ndcg@10 by size of the test purchases of new users, and of all others."""
    tested = split.table(TEST).with_columns(wanted=pl.lit(True))
    count = tested.group_by("user").agg(pl.len().alias("count"))
    new = given.whole.entities.ids(count["user"]) >= given.first
    out: dict[str, float] = {}
    for dim in made.dims:
        model = ma.train_recommender(made.crop(dim), split, RecommendConfig(model="graph")).model
        lists = model.recommend(count["user"], 10).join(tested, ["user", "item"], how="left")
        gain = pl.col("wanted").fill_null(False) / (pl.col("rank") + 1).log(2)
        found = lists.group_by("user").agg(gain.sum().alias("gain"))
        table = count.join(found, "user", how="left", maintain_order="left").fill_null(0.0)
        best = np.cumsum(1 / np.log2(np.arange(2, 12)))
        value = table["gain"].to_numpy() / best[np.minimum(table["count"].to_numpy(), 10) - 1]
        out |= {f"ndcg_new_{dim}": value[new].mean(), f"ndcg_old_{dim}": value[~new].mean()}
    return {name: float(value) for name, value in out.items()}


def labels(
    made: ma.Embedding, teacher: ma.Embedding, given: Withheld, table: pl.DataFrame
) -> dict[str, float]:
    """F1 by size and label of new users; who labels was trained on old users of `teacher`."""
    new = pl.Series(given.whole.entities.ids(table["user"]) >= given.first)
    out = {}
    for column in ("join_period", "helpfulness_level"):
        config = ma.LabelConfig(column=column, controls=False)
        for dim in made.dims:
            before = table.filter(~new)
            model = train_labeller(teacher.crop(dim), before, config, seeds=(0, 1)).model
            asked = table.filter(new).drop_nulls(column)
            guess = model.predict(made.crop(dim), asked["user"])[column]
            out[f"f1_{column}_{dim}"] = _f1(asked[column].cast(pl.String), guess)
    return out


def _f1(truth: pl.Series, guess: pl.Series) -> float:
    """Mean F1 over the classes."""
    scores = []
    for name in truth.unique().sort():
        hit = ((truth == name) & (guess == name)).sum()
        scores.append(2 * hit / max(1, (truth == name).sum() + (guess == name).sum()))
    return float(np.mean(scores))


def study(folder: Path, place: Path, write: Callable[..., bool], share: float) -> None:
    """All figures of one data set."""
    name = folder.resolve().name
    bought = find_table(folder, ["interactions"])
    split = ma.split_purchases(folder) if bought else None
    given = Withheld.of(ma.read_graph(folder, split=split), share)
    config = ma.MedConfig(dims=(10, 100), epochs=EPOCHS.get(name, 20), threads=1)
    table = ma.read_labels(folder) if find_table(folder, ["labels"]) else None

    def kept(what: str, make: Callable[[], ma.Embedding]) -> tuple[ma.Embedding, float]:
        at = place / f"{name}-{what}"
        if not (at / "manifest.json").exists():
            began = time.process_time()
            made = make()
            seconds = {"cpu_seconds": time.process_time() - began}
            replace(made, metrics=made.metrics | seconds).save(at, Provenance(config.plain()))
        made = ma.Embedding.load(at)
        return made, made.metrics["cpu_seconds"]

    before, _ = kept("before", lambda: ma.train_med(given.until(given.first), config))
    again, _ = kept("again", lambda: ma.train_med(given.whole, config))
    ways = {
        "again": lambda: again,
        "grow": lambda: ma.grow(before, given.whole, config=config),
        "refresh": lambda: ma.grow(before, given.whole, config=config, refresh=True),
        "ten steps": lambda: _in_steps(before, given, config),
    }
    for way, make in ways.items():
        if write(name, way, None):
            continue
        made, seconds = kept(way.replace(" ", "-"), make)
        found = {"cpu_seconds": seconds, "new_entities": len(given.whole.entities) - given.first}
        if len(given.whole.test):
            found |= mrr(made, given)
        if split is not None:
            found |= ndcg(made, given, split)
        if table is not None:
            teacher = again if way == "again" else made if way == "refresh" else before
            found |= labels(made, teacher, given, table)
        write(name, way, found)


def _in_steps(before: ma.Embedding, given: Withheld, config: ma.MedConfig) -> ma.Embedding:
    """The same entities, a tenth of them at a time."""
    made = before
    for count in given.counts():
        made = ma.grow(made, given.until(count), config=config)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, nargs="+", help="dataset folders")
    parser.add_argument("--out", type=Path, required=True, help="lines of JSON; goes on there")
    parser.add_argument("--embeddings", type=Path, default=Path("workspace/grow_study"))
    parser.add_argument("--share", type=float, default=0.1, help="share of entities withheld")
    given = parser.parse_args()
    done: dict[tuple[str, str], Any] = {}
    if given.out.exists():
        lines = map(json.loads, given.out.read_text().splitlines())
        done = {(line["data"], line["way"]): line for line in lines}

    def write(data: str, way: str, found: dict[str, float] | None) -> bool:
        """Whether the figures are there; writes them where they are given."""
        if found is None:
            return (data, way) in done
        line = {"data": data, "way": way} | {key: round(value, 5) for key, value in found.items()}
        with given.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        say(json.dumps(line), markup=False)
        return True

    for folder in given.data:
        study(folder, given.embeddings, write, given.share)


if __name__ == "__main__":
    start(main)
