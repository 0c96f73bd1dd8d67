"""Batches: every triple once per epoch, fair sides, right masks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from medapps.graph.graph import KnownTriples
from medapps.train.batches import Batch, Sampler, one_way_relations, sampler_of
from medapps.train.config import MedConfig


def sampler(graph, **changes) -> Sampler:
    defaults = {"dims": (4,), "batch": 64, "chunk": 16, "negatives": 8}
    config = MedConfig(**(defaults | changes))
    known = KnownTriples.of(graph.train, len(graph.entities))
    return sampler_of(graph.train, len(graph.entities), config, 0, known)


def as_triples(batch) -> np.ndarray:
    """Back to (head, relation, tail)."""
    out = np.empty((len(batch.source), 3), np.int32)
    out[:, 1] = batch.relation
    for chunk in batch.chunks:
        part = slice(chunk.start, chunk.stop)
        given, asked = (0, 2) if chunk.side == "tail" else (2, 0)
        out[part, given], out[part, asked] = batch.source[part], batch.target[part]
    return out


def test_an_epoch_visits_every_triple_once_and_both_sides_equally(graph):
    draw = sampler(graph)
    sides, seen = [], []
    for epoch in range(2):
        batches = [draw.batch(epoch, step) for step in range(draw.steps)]
        rows = np.concatenate([as_triples(b) for b in batches])
        assert np.array_equal(np.unique(rows, axis=0), np.unique(graph.train, axis=0))
        assert len(rows) == len(graph.train)
        seen.append(rows)
        sides += [chunk.side for b in batches for chunk in b.chunks]
    assert abs(sides.count("tail") - sides.count("head")) <= 2
    assert not np.array_equal(seen[0], seen[1])


def test_one_chunk_per_batch_alternates_sides(graph):
    draw = sampler(graph, chunk=64)
    sides = [draw.batch(0, step).chunks[0].side for step in range(4)]
    assert sides == ["tail", "head", "tail", "head"]


@pytest.mark.parametrize("mode", ["shared", "independent"])
def test_batches_are_a_function_of_the_counters(graph, mode):
    one, two = (sampler(graph, negative_mode=mode).batch(3, 2) for _ in range(2))
    assert all(
        np.array_equal(a.negatives, b.negatives)
        for a, b in zip(one.chunks, two.chunks, strict=True)
    )
    other = sampler(graph, negative_mode=mode).batch(3, 1)
    assert not np.array_equal(one.chunks[0].negatives, other.chunks[0].negatives)


@pytest.mark.parametrize("mode", ["shared", "independent"])
@pytest.mark.parametrize("filtered", [False, True])
def test_masks_hold_exactly_the_true_entity_or_all_known_triples(graph, mode, filtered):
    draw = sampler(graph, negative_mode=mode, filter_known=filtered, negatives=40)
    known = {tuple(row) for row in graph.train.tolist()}
    for step in range(draw.steps):
        batch = draw.batch(0, step)
        for chunk in batch.chunks:
            count = chunk.stop - chunk.start
            negatives = np.broadcast_to(chunk.negatives, (count, 40))
            truth = np.zeros((count, 40), bool)
            for i in range(count):
                source, relation = batch.source[chunk.start + i], batch.relation[chunk.start + i]
                for k, entity in enumerate(negatives[i]):
                    pair = (source, entity) if chunk.side == "tail" else (entity, source)
                    triple = (int(pair[0]), int(relation), int(pair[1]))
                    own = entity == batch.target[chunk.start + i]
                    truth[i, k] = triple in known if filtered else own
            assert np.array_equal(np.flatnonzero(truth), chunk.masked)


def test_uniform_negatives_are_uniform(graph):
    draw = sampler(graph, negatives=5000)
    drawn = np.concatenate(
        [c.negatives for s in range(draw.steps) for c in draw.batch(0, s).chunks]
    )
    counts = np.bincount(drawn, minlength=64) / len(drawn) * 64
    assert counts.min() > 0.8 and counts.max() < 1.2


def test_one_way_relations_have_fewer_than_half_of_their_triples_reversed():
    triples = [[0, 0, 1], [1, 0, 0], [2, 0, 3]]  # two of three reversed
    triples += [[0, 1, 1], [1, 1, 2], [2, 1, 1]]  # two of three
    triples += [[0, 3, 1], [1, 3, 2], [2, 3, 3], [3, 3, 4], [4, 3, 3]]  # two of five
    assert one_way_relations(np.array(triples, np.int32), 5).tolist() == [False, False, False, True]


@pytest.mark.parametrize("mode", ["shared", "independent"])
@pytest.mark.parametrize("norm", ["per_positive", "batch"])
@pytest.mark.parametrize("of", [2, 3, 70])
def test_parts_of_a_batch_make_the_whole_batch(graph, mode, norm, of):
    """What every rank draws for itself, put together, is what one process would draw."""
    config = MedConfig(batch=40, chunk=16, negatives=9, negative_mode=mode, negative_norm=norm)
    whole = sampler_of(graph.train, len(graph.entities), config, 3, graph.known)
    for step in (0, whole.steps - 1):  # the last one is short
        batch = whole.batch(1, step)
        parts = [replace(whole, part=(i, of)).batch(1, step) for i in range(of)]
        for name in ("source", "relation", "target"):
            joined = np.concatenate([getattr(part, name) for part in parts])
            assert np.array_equal(joined, getattr(batch, name)), name
        assert all(part.of == len(batch.source) for part in parts)
        assert _corruptions(parts) == _corruptions([batch])
        if norm == "batch":
            cut = {chunk.stop - chunk.start for part in parts for chunk in part.chunks}
            assert cut <= {0, 16, 8, len(batch.source) % 16}


def _corruptions(batches: list[Batch]) -> list[tuple]:
    """Per positive: its query, side, negatives and which of them are masked."""
    out = []
    for batch in batches:
        for chunk in batch.chunks:
            count = chunk.negatives.shape[-1]
            masked = np.zeros((chunk.stop - chunk.start, count), bool)
            masked.reshape(-1)[chunk.masked] = True
            for i in range(chunk.stop - chunk.start):
                own = chunk.negatives if chunk.negatives.ndim == 1 else chunk.negatives[i]
                query = int(batch.source[chunk.start + i]), int(batch.relation[chunk.start + i])
                out.append((query, chunk.side, own.tolist(), masked[i].tolist()))
    return out


@pytest.mark.parametrize("mode", ["shared", "independent"])
def test_hubs_are_masked_like_everybody(graph, monkeypatch, mode):
    draw = sampler(graph, negative_mode=mode, negatives=24)
    usual = [chunk.masked for step in range(draw.steps) for chunk in draw.batch(0, step).chunks]
    for long in (0, 1):  # searched instead of spelled out: all queries, those with two answers
        monkeypatch.setattr("medapps.train.batches.LONG", long)
        again = [c.masked for step in range(draw.steps) for c in draw.batch(0, step).chunks]
        assert all(np.array_equal(a, b) for a, b in zip(usual, again, strict=True))
    assert sum(map(len, usual)) > 0
