"""Ranking against brute force, by hand, and against PyKEEN where it is installed."""

from __future__ import annotations

import tracemalloc

import numpy as np
import polars as pl
import pytest

from medapps.crop.embedding import Embedding
from medapps.evaluate.filtered_ranking import Tables, rank_tables
from medapps.evaluate.link_prediction import (
    effi,
    rank_crop,
    rank_embedding,
    rank_metrics,
    retention,
)
from medapps.graph.known_triples import KnownTriples
from medapps.model.rule import ScoreSpec
from medapps.model.rules import RULES
from tests.train.conftest import make_graph

DIMS = (2, 5, 12)


def tables(graph, seed=0, width=12):
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((len(graph.entities), width)).astype(np.float32),
        rng.standard_normal((len(graph.relations), width)).astype(np.float32),
    )


def specs(n=3) -> tuple[ScoreSpec, ...]:
    return tuple(ScoreSpec(scale=1.0 + i, margin=3.0) for i in range(n))


def brute_force(entities, relations, dims, specs, triples, known) -> np.ndarray:
    """Ranks (dims, 2, triples) by scoring every corruption on its own in float64."""
    out = np.empty((len(dims), 2, len(triples)))
    e, r = entities.astype(np.float64), relations.astype(np.float64)
    everything = np.arange(len(e))
    for i, (dim, spec) in enumerate(zip(dims, specs, strict=True)):
        score = RULES[spec.scorer].score
        for k, (h, rel, t) in enumerate(triples.tolist()):
            for side, true in enumerate((h, t)):
                heads, tails = (everything, [t]) if side == 0 else ([h], everything)
                scores = score(e[heads, :dim], r[[rel], :dim], e[tails, :dim], spec)
                keep = [
                    x != true and ((x, rel, t) if side == 0 else (h, rel, x)) not in known
                    for x in everything.tolist()
                ]
                others = scores[keep]
                near = np.abs(others - scores[true]) <= 1e-12
                better = (others > scores[true]) & ~near
                out[i, side, k] = 1 + better.sum() + near.sum() / 2
    return out


def known_set(graph) -> set[tuple[int, int, int]]:
    rows = np.concatenate([graph.train, graph.valid, graph.test])
    return {tuple(row) for row in rows.tolist()}


@pytest.mark.parametrize("memory", [1, 2**23])
def test_ranks_equal_brute_force(graph, memory):
    e, r = tables(graph)
    truth = brute_force(e, r, DIMS, specs(), graph.test, known_set(graph))
    got = rank_tables(Tables(e, r, DIMS, specs()), graph.test, graph.known, memory=memory)
    np.testing.assert_array_equal(got.ranks, truth)


def test_near_and_exact_ties_are_told_apart(graph):
    """Copies of entities tie exactly, shifts beyond float32's matrix products do not."""
    e, r = tables(graph)
    e = e * 30  # large lengths make the expanded distance inexact
    e[20:40] = e[:20]
    e[40:60] = e[:20] * np.float32(1 + 1e-6)
    truth = brute_force(e, r, DIMS, specs(), graph.test, known_set(graph))
    got = rank_tables(Tables(e, r, DIMS, specs()), graph.test, graph.known)
    np.testing.assert_array_equal(got.ranks, truth)
    assert (truth % 1 == 0.5).any(), "some ranks are halved by ties"


def test_a_constant_scorer_gets_the_middle_rank(graph):
    e, r = np.zeros((64, 4), np.float32), np.zeros((6, 4), np.float32)
    ranks = rank_tables(Tables(e, r, (2, 4), specs(2)), graph.test, None).ranks
    assert (ranks == (64 + 1) / 2).all()


def test_filtered_entities_never_count(graph):
    e, r = tables(graph)
    raw = rank_tables(Tables(e, r, DIMS, specs()), graph.test, None).ranks
    filtered = rank_tables(Tables(e, r, DIMS, specs()), graph.test, graph.known).ranks
    assert (filtered <= raw).all() and (filtered < raw).any()


def test_sampled_ranking_is_labelled_and_never_worse_than_the_full_one(graph):
    e, r = tables(graph)
    full = rank_tables(Tables(e, r, DIMS, specs()), graph.test, graph.known)
    some = rank_tables(Tables(e, r, DIMS, specs()), graph.test, graph.known, candidates=30)
    assert (full.candidates, some.candidates) == (None, 30)
    assert (some.ranks <= full.ranks).all() and some.ranks.max() <= 31
    again = rank_tables(Tables(e, r, DIMS, specs()), graph.test, graph.known, candidates=30)
    np.testing.assert_array_equal(some.ranks, again.ranks)


def test_metrics_by_hand():
    ranks = np.array([[1.0, 2.0], [999.0, 4.0]])  # head ranks, tail ranks
    m = rank_metrics(ranks)
    assert m["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 999 + 1 / 4) / 4)
    assert m["mrr_head"] == pytest.approx(0.75) and m["hits_at_1_tail"] == 0
    assert m["hits_at_3"] == 0.5 and m["hits_at_10"] == 0.75
    assert m["mrr_avgrank"] == pytest.approx((1 / 500 + 1 / 3) / 2)
    assert m["hits_at_3_avgrank"] == 0.5


def test_averaged_ranks_never_look_better():
    ranks = np.random.default_rng(0).integers(1, 500, (2, 1000)).astype(float)
    m = rank_metrics(ranks)
    assert m["mrr_avgrank"] <= m["mrr"]


def test_retention_by_hand():
    """Rows are queries: none, last only, lost again, kept from the first, kept from the second."""
    hits = np.array([[0, 0, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]], bool)
    ranks = np.where(hits.T, 1.0, 50.0)[:, None, :].repeat(2, 1)  # (dims, 2, queries)
    out = retention(ranks)
    assert out["arr"] == out["arr_triple"] == pytest.approx(3 / 4)
    assert out["arr_all"] == pytest.approx(3 / 5)
    assert out["arr_last_only"] == pytest.approx(1 / 4)
    none = retention(np.full((3, 2, 4), 99.0))
    assert none["arr"] == none["arr_all"] == 0


def test_effi_reproduces_the_printed_value():
    parameters = 14541 * 2 * 40 + 237 * 40
    out = effi(0.318, parameters)
    assert out["effi"] == pytest.approx(0.265, abs=5e-4)
    assert out["effi_exact"] == pytest.approx(0.318 / 1.17276, rel=1e-6)


def embedding_of(graph) -> Embedding:
    e, r = tables(graph)
    return Embedding(
        e, r, DIMS, specs(), graph.entities, graph.relations, graph.users, graph.digest
    )


def test_reports_carry_units_and_a_table_that_agree_with_the_headline(graph):
    reports, result = rank_embedding(embedding_of(graph), graph)
    assert [report.dim for report in reports] == list(DIMS)
    for report in reports:
        figures = result["dims"][str(report.dim)]
        assert report.metrics == figures
        assert report.units["mrr"].shape == (1, 2 * len(graph.test))
        assert report.units["mrr"].mean() == pytest.approx(figures["mrr"], rel=1e-5)
        table = report.tables["by_relation"]
        assert table["triples"].sum() == len(graph.test)
        weighted = (table["mrr"] * table["triples"]).sum() / len(graph.test)
        assert weighted == pytest.approx(figures["mrr"], rel=1e-9)
    assert result["sampled"] is False and 0 <= result["arr"] <= 1


def test_a_crop_ranks_like_the_size_it_was_cropped_from(graph):
    embedding = embedding_of(graph)
    _, whole = rank_embedding(embedding, graph)
    for dim in DIMS:
        _, part = rank_crop(embedding.crop(dim), graph)
        assert part["dims"][str(dim)] == whole["dims"][str(dim)]


def test_ranking_agrees_with_pykeen():
    torch = pytest.importorskip("torch")
    evaluation = pytest.importorskip("pykeen.evaluation")
    from pykeen.models import TransE
    from pykeen.triples import CoreTriplesFactory

    graph = make_graph(seed=4)
    e, r = tables(graph, width=8)
    factories = [
        CoreTriplesFactory(torch.from_numpy(t.astype(np.int64)), 64, 6)
        for t in (graph.train, graph.valid, graph.test)
    ]
    model = TransE(triples_factory=factories[0], embedding_dim=8, scoring_fct_norm=2, random_seed=0)
    with torch.no_grad():
        model.entity_representations[0]._embeddings.weight.copy_(torch.from_numpy(e))
        model.relation_representations[0]._embeddings.weight.copy_(torch.from_numpy(r))
    result = evaluation.RankBasedEvaluator(filtered=True).evaluate(
        model,
        factories[2].mapped_triples,
        additional_filter_triples=[f.mapped_triples for f in factories[:2]],
        use_tqdm=False,
    )
    ranks = rank_tables(Tables(e, r, (8,), specs(1)), graph.test, graph.known).ranks[0]
    mine = rank_metrics(ranks)
    key = "both.realistic.inverse_harmonic_mean_rank"
    assert mine["mrr"] == pytest.approx(result.get_metric(key), abs=1e-6)
    assert mine["hits_at_10"] == pytest.approx(
        result.get_metric("both.realistic.hits_at_10"), abs=1e-6
    )


def test_relation_names_come_back(graph):
    reports, _ = rank_embedding(embedding_of(graph), graph)
    names = set(reports[0].tables["by_relation"]["relation"])
    assert (
        names <= {f"move{i}" for i in range(6)}
        and reports[0].tables["by_relation"].schema["triples"] == pl.Int64
    )


def hub_of(entities: int, strangers: int) -> np.ndarray:
    """Triples of entity 0 with all others but the last few."""
    tails = np.arange(1, entities - strangers)
    return np.stack([np.zeros_like(tails), np.zeros_like(tails), tails], 1).astype(np.int32)


def test_the_filter_of_a_hub_takes_no_more_memory_than_the_scores():
    """A hundred queries with 200,000 known answers each: spelled out they would take 400 MB."""
    triples, width = hub_of(200_000, strangers=5), 4
    rng = np.random.default_rng(0)
    e = rng.standard_normal((200_000, width)).astype(np.float32)
    known = KnownTriples.of(triples, len(e))
    whole = Tables(e, e[:1], (width,), specs(1))
    tracemalloc.start()
    ranks = rank_tables(whole, triples[::2000], known).ranks
    some = rank_tables(whole, triples[::2000], known, candidates=20_000).ranks
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 150e6
    tails = 1  # the hub asks for tails: only itself and the five strangers count
    assert ranks[0, tails].max() <= 7 and some[0, tails].max() <= 7


@pytest.mark.parametrize("memory", [1, 3000, 2**23])
def test_the_filter_of_a_hub_equals_brute_force(memory):
    triples = hub_of(60, strangers=20)
    e, r = np.random.default_rng(1).standard_normal((2, 60, 12)).astype(np.float32)
    truth = brute_force(e, r, DIMS, specs(), triples, {tuple(row) for row in triples.tolist()})
    known = KnownTriples.of(triples, len(e))
    got = rank_tables(Tables(e, r, DIMS, specs()), triples, known, memory=memory)
    np.testing.assert_array_equal(got.ranks, truth)
