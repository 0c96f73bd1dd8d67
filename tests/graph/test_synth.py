"""The synthetic set is what it says: exact sizes, the same bytes, honest labels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits

from medapps.graph.check import check_dataset
from medapps.graph.config import GraphConfig
from medapps.graph.graph import Graph
from medapps.graph.planted import LABELS, RELATIONS, shares
from medapps.graph.read import read_graph
from medapps.graph.synth import PRESETS, synthesize
from medapps.store import file_digest

FILES = ("interactions.parquet", "labels.parquet", "latents.parquet", "skg.parquet")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthesize(tmp_path_factory.mktemp("synth") / "demo", "demo").folder


def probe(features: np.ndarray, classes: pl.Series) -> float:
    """Share of every fifth user whose class a ridge regression on the others finds."""
    target = classes.to_dummies().to_numpy().astype(float)
    x = np.column_stack([features, np.ones(len(features))])
    test = np.arange(len(x)) % 5 == 0
    a, b = x[~test], target[~test]
    weights = np.linalg.solve(a.T @ a + 1e-3 * len(a) * np.eye(a.shape[1]), a.T @ b)
    return float(((x[test] @ weights).argmax(1) == target[test].argmax(1)).mean())


def chance(classes: pl.Series) -> float:
    counts = classes.value_counts()["count"].to_numpy()
    return float(counts.max() / counts.sum())


def smoothed(graph: Graph, width: int) -> np.ndarray:
    """(users, width): leading eigenvectors of the normalised adjacency, by subspace iteration."""
    n, ends = len(graph.entities), (graph.train[:, 0], graph.train[:, 2])
    one_way = csr_array((np.ones(len(graph.train), np.float32), ends), shape=(n, n))
    adjacency = one_way + one_way.T
    scale = 1 / np.sqrt(adjacency.sum(1) + 2)[:, None]
    basis = np.random.default_rng(0).standard_normal((n, width)).astype(np.float32)
    with threadpool_limits(1):
        for _ in range(40):
            basis = np.linalg.qr(scale * (adjacency @ (scale * basis)) + basis)[0]
    return basis * np.sqrt(n)


def test_counts_are_exact(demo: Path) -> None:
    made = synthesize(demo, "demo")  # kept, not made again
    graph = read_graph(demo, GraphConfig(interactions="off"))
    assert graph.counts()["entities"] == made.users == PRESETS["demo"].users
    assert len(graph.train) == made.triples == PRESETS["demo"].triples(made.users)
    assert graph.relations.names().to_list() == sorted(r.name for r in RELATIONS)
    assert len(RELATIONS) == 15
    assert graph.notes == {"duplicates": 0, "self_loops": 0}
    bought = pl.read_parquet(demo / "interactions.parquet")
    assert (len(bought), bought["item"].n_unique()) == (made.interactions, made.items)
    assert not bought.select("user", "item").is_duplicated().any()
    # a draw may repeat an item, and a repeated one counts once
    assert bought["user"].n_unique() == made.users


def test_the_paper_preset_has_the_published_size() -> None:
    paper = PRESETS["paper"]
    assert paper.users == 6_974_959
    assert paper.triples(paper.users) == sum(shares(paper.triples(paper.users))) == 50_775_620


def test_the_same_seed_gives_the_same_bytes_on_any_number_of_threads(
    tiny_dataset: Path, tmp_path: Path
) -> None:
    code = "from medapps.graph.synth import synthesize; synthesize('again', 'tiny', seed=0)"
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        check=True,
        env={**os.environ, "POLARS_MAX_THREADS": "1", "PYTHONPATH": str(Path.cwd())},
    )
    other = synthesize(tmp_path / "other", "tiny", seed=1).folder
    for name in FILES:
        assert file_digest(tiny_dataset / name) == file_digest(tmp_path / "again" / name)
        assert file_digest(tiny_dataset / name) != file_digest(other / name)


def test_labels_follow_from_the_latents_and_not_from_shuffled_ones(demo: Path) -> None:
    labels = pl.read_parquet(demo / "labels.parquet")
    latents = pl.read_parquet(demo / "latents.parquet")
    assert latents["user"].equals(labels["user"])
    places = latents["latent"].to_numpy()
    shuffled = np.random.default_rng(0).permutation(places)
    for label in LABELS:
        classes = labels[label.name]
        assert set(classes) == set(label.classes)
        assert probe(places, classes) > chance(classes) + 0.25
        assert abs(probe(shuffled, classes) - chance(classes)) < 0.05
    # columns of different difficulty
    best = {label.name: probe(places, labels[label.name]) for label in LABELS}
    assert best["gender"] > best["life_stage"] + 0.05 > best["segment"] + 0.1


def test_the_graph_reveals_the_latents_in_part(demo: Path) -> None:
    labels = pl.read_parquet(demo / "labels.parquet")
    graph = read_graph(demo, GraphConfig(interactions="off"))
    assert graph.entities.names().equals(labels["user"], check_names=False)
    seen = smoothed(graph, 24)
    oracle = pl.read_parquet(demo / "latents.parquet")["latent"].to_numpy()
    for label in LABELS:
        classes = labels[label.name]
        by_graph, by_oracle = probe(seen, classes), probe(oracle, classes)
        assert chance(classes) + 0.08 < by_graph < by_oracle - 0.05, label.name


def test_purchases_follow_from_the_latents(demo: Path) -> None:
    """Users who bought an item stand closer together than users at large."""
    places = pl.read_parquet(demo / "latents.parquet").with_columns(pl.col("latent").arr.to_list())
    bought = pl.read_parquet(demo / "interactions.parquet").join(places, on="user")
    rows = np.stack(bought["latent"].to_numpy())  # (interactions, width)
    item = bought["item"].rank("dense").to_numpy().astype(int) - 1
    share = _within(rows, item)
    shuffled = _within(rows, np.random.default_rng(0).permutation(item))
    assert share < 0.85 < 0.95 < shuffled


def _within(rows: np.ndarray, group: np.ndarray) -> float:
    """Variance within groups as a share of all variance."""
    count = np.bincount(group)[:, None]
    total = np.zeros((len(count), rows.shape[1]))
    np.add.at(total, group, rows)
    return float(((rows - (total / count)[group]) ** 2).sum() / ((rows - rows.mean(0)) ** 2).sum())


def test_degrees_are_heavy_tailed(demo: Path) -> None:
    graph = read_graph(demo, GraphConfig(interactions="off"))
    out, into = (
        np.bincount(graph.train[:, side], minlength=len(graph.entities)) for side in (0, 2)
    )
    assert out.min() >= 1
    assert out.max() > 8 * np.median(out)
    hubs = graph.train[graph.train[:, 1] == graph.relations.ids(["follows"])[0]]
    followers = np.bincount(hubs[:, 2], minlength=len(graph.entities))
    top = np.sort(followers)[::-1][: len(followers) // 100].sum()
    assert top > 0.05 * followers.sum()
    assert np.corrcoef(out, into)[0, 1] < 0.9


def test_no_relation_tells_a_label(demo: Path) -> None:
    assert check_dataset(demo).problems == ()


def test_other_numbers_of_users_keep_the_density(tmp_path: Path) -> None:
    made = synthesize(tmp_path / "x", "tiny", users=777)
    assert (made.users, made.entities, made.triples) == (777, 777, 7770)
