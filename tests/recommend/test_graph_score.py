"""The graph's score of a block is the score of its triples, one by one."""

from __future__ import annotations

import numpy as np
import pytest

from medapps.model.rule import ScoreSpec
from medapps.model.rules import RULES
from medapps.recommend.parts.graph_score import graph_score, service_of


@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize("dim", [4, 9])
def test_blocks_equal_single_triples_at_any_prefix(name: str, dim: int) -> None:
    rule = RULES[name]
    entity, link, _ = rule.REALS
    rng = np.random.default_rng(0)
    entities = rng.standard_normal((30, 9 * entity)).astype(np.float32)
    relation = rng.standard_normal(9 * link).astype(np.float32)
    spec = ScoreSpec(name, next(iter(rule.NORMS)), scale=1.5, margin=4.0)
    users, items = np.arange(5), np.arange(10, 30)
    graph = graph_score(entities, relation, spec, users, items, dim)
    got = graph.scores(np.array([3, 1]))
    for row, user in enumerate((3, 1)):
        heads = np.tile(entities[user, : dim * entity], (20, 1))
        links = np.tile(relation[: dim * link], (20, 1))
        expected = rule.score(heads, links, entities[items, : dim * entity], spec)
        assert got[row] == pytest.approx(expected, abs=1e-4)


def test_what_the_graph_does_not_know_is_never_preferred() -> None:
    rng = np.random.default_rng(0)
    entities = rng.standard_normal((9, 4)).astype(np.float32)
    items = np.array([4, -1, 6])
    graph = graph_score(entities, entities[8], ScoreSpec(), np.array([0, -1]), items)
    scores = graph.scores(np.array([0, 1]))
    assert scores[0].argmin() == 1 or scores[0, 1] == scores[0].min()
    assert (scores[1] == 0).all()


def test_a_users_service_vector_is_its_own_translated_by_takes() -> None:
    entities = np.arange(12, dtype=np.float32).reshape(4, 3)
    takes = np.array([1, 2, 3], np.float32)
    graph = graph_score(entities, takes, ScoreSpec(), np.array([1, -1]), np.array([2]))
    service = service_of(graph)
    assert service.users.tolist() == [[4, 6, 8], [0, 0, 0]]
    assert service.items is not None and service.items.tolist() == [[6, 7, 8]]
