"""Which coordinates are kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from medapps.baselines import extract
from medapps.baselines.config import ExtractConfig
from medapps.baselines.registry import make_baseline
from medapps.errors import MedappsError
from medapps.model.rule import ScoreSpec
from medapps.model.rules import RULES
from medapps.train.order import NEGATIVES, stream
from tests.baselines.conftest import OFF, make_graph


def softplus(x):
    return np.logaddexp(0, x)


def naive_loss(crop, triples, others, w2):
    """The training loss on both sides of every triple, one query at a time, in float64."""
    score = RULES[crop.spec.scorer].score
    entities, relations = crop.entities.astype(float), crop.relations.astype(float)
    total = 0.0
    for head, relation, tail in triples:
        for asked, side in ((tail, "tail"), (head, "head")):

            def of(candidates, side=side, head=head, tail=tail, relation=relation):
                h = entities[candidates] if side == "head" else entities[[head]]
                t = entities[candidates] if side == "tail" else entities[[tail]]
                return score(h, relations[[relation]], t, crop.spec)

            negatives = others[others != asked]
            s = of(negatives)
            weight = np.exp(w2 * s - np.max(w2 * s))
            total += softplus(-of(np.array([asked]))[0])
            total += (weight / weight.sum() * softplus(s)).sum()
    return total / (2 * len(triples))


@pytest.mark.parametrize(("scorer", "norm"), [("transe", "l2"), ("distmult", "dot")])
def test_importance_is_the_rise_of_the_loss_without_the_coordinate(graph, teacher, scorer, norm):
    teacher = replace(teacher, spec=ScoreSpec(scorer, norm, scale=0.9, margin=4.0))
    options = ExtractConfig(triples=20, negatives=12)
    found = extract.by_loss(teacher, graph, options, temperature=1.5, seed=5)
    draws = stream(5, NEGATIVES)
    triples = graph.valid[np.sort(draws.choice(len(graph.valid), 20, replace=False))]
    others = draws.integers(0, len(graph.entities), 12)
    whole = naive_loss(teacher, triples, others, 1.5)
    for k in (0, 7, 15):
        entities, relations = teacher.entities.copy(), teacher.relations.copy()
        entities[:, k] = relations[:, k] = 0
        without = naive_loss(
            replace(teacher, entities=entities, relations=relations), triples, others, 1.5
        )
        assert found[k] == pytest.approx(without - whole, abs=1e-4)


def test_blocks_do_not_change_importance(graph, teacher, monkeypatch):
    sample, given = ExtractConfig(triples=60, negatives=16), {"temperature": 1.0, "seed": 0}
    whole = extract.by_loss(teacher, graph, sample, **given)
    monkeypatch.setattr(extract, "BLOCK", 16 * 16 * 7)
    np.testing.assert_allclose(extract.by_loss(teacher, graph, sample, **given), whole, atol=1e-6)


@pytest.mark.parametrize(("name", "size"), [("ext-l", 1.0), ("ext-v", 0.0)])
def test_a_harmful_or_empty_coordinate_is_left_out(graph, teacher, name, size):
    entities, relations = teacher.entities.copy(), teacher.relations.copy()
    entities[:, 3] = np.random.default_rng(0).normal(size=len(entities)) * size
    relations[:, 3] = 0
    dull = replace(teacher, entities=entities, relations=relations)
    crop = make_baseline(name, graph, 15, OFF, teacher=dull)
    kept = crop.about["coordinates"]
    assert sorted(kept) == [k for k in range(16) if k != 3]
    assert np.array_equal(crop.entities, entities[:, kept])
    assert np.array_equal(crop.relations, relations[:, kept])


def test_ext_is_the_first_coordinates(graph, teacher):
    crop = make_baseline("ext", graph, 5, OFF, teacher=teacher)
    assert np.array_equal(crop.entities, teacher.entities[:, :5])
    assert np.array_equal(crop.relations, teacher.relations[:, :5])


def test_ext_v_by_hand(graph, teacher):
    both = np.concatenate([teacher.entities, teacher.relations]).astype(float)
    expected = np.abs(both).mean(0)
    np.testing.assert_allclose(extract.by_value(teacher), expected, rtol=1e-6)
    assert list(extract.largest(np.array([1.0, 3.0, 2.0, 3.0]), 3)) == [1, 3, 2]


def test_several_reals_of_a_coordinate_stay_together():
    table = np.arange(12, dtype=np.float32).reshape(2, 6)  # three coordinates of two reals
    kept = extract.take(table, np.array([2, 0]), dim=3)
    assert kept.tolist() == [[4, 5, 0, 1], [10, 11, 6, 7]]


def test_ext_l_needs_validation_triples(teacher):
    with pytest.raises(MedappsError, match=r"validation triples.*ext-v"):
        make_baseline("ext-l", make_graph(valid=0), 4, OFF, teacher=teacher)
