"""Principal axes, and what they do to scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.decomposition import PCA

from medapps.baselines import extract as pca
from medapps.baselines.registry import make_baseline
from medapps.model.rule import ScoreSpec
from medapps.model.rules import RULES
from tests.baselines.conftest import OFF


def scores(entities, relations, triples, spec):
    h, r, t = triples.T
    return RULES["transe"].score(entities[h], relations[r], entities[t], spec)


def test_all_axes_keep_every_score(graph, teacher):
    spec = ScoreSpec(scale=1.3, margin=5.0)
    axes = pca.principal_axes(teacher.entities, teacher.dim)
    turned = (
        pca.project(teacher.entities, axes, centre=True),
        pca.project(teacher.relations, axes, centre=False),
    )
    before = scores(teacher.entities, teacher.relations, graph.test, spec)
    np.testing.assert_allclose(scores(*turned, graph.test, spec), before, rtol=2e-4, atol=2e-4)
    assert axes.explained == pytest.approx(1.0, abs=1e-5)


def test_the_crop_holds_the_components_of_scikit_learn(graph, teacher):
    crop = make_baseline("pca", graph, 6, OFF, teacher=teacher)
    expected = PCA(6, svd_solver="full").fit_transform(teacher.entities.astype(np.float64))
    for mine, theirs in zip(crop.entities.T, expected.T, strict=True):
        sign = np.sign(mine @ theirs)
        np.testing.assert_allclose(mine, sign * theirs, atol=2e-4)
    assert crop.about["explained_variance"] < 1


def test_more_axes_come_nearer_to_the_teacher(graph, teacher):
    before = scores(teacher.entities, teacher.relations, graph.test, teacher.spec)
    errors = []
    for dim in (2, 6, 12):
        crop = make_baseline("pca", graph, dim, OFF, teacher=teacher)
        errors.append(np.abs(scores(crop.entities, crop.relations, graph.test, crop.spec) - before))
    assert errors[0].mean() > errors[1].mean() > errors[2].mean()


def test_blocks_of_a_large_table_give_the_same_axes(monkeypatch):
    rng = np.random.default_rng(0)
    table = (rng.normal(size=(1003, 8)) * [9, 7, 5, 3, 1, 1, 1, 1] + 4).astype(np.float32)
    exact = pca.principal_axes(table, 3)
    monkeypatch.setattr(pca, "ROWS", 250)  # the last block of 3 rows is as small as dim
    blocks = pca.principal_axes(table, 3, many=0)
    np.testing.assert_allclose(np.abs((exact.axes * blocks.axes).sum(0)), 1, atol=0.01)
    assert blocks.explained == pytest.approx(exact.explained, abs=0.01)


def test_relations_of_scores_that_a_rotation_changes_are_not_projected(graph, teacher):
    spec = replace(teacher.spec, scorer="distmult", norm="dot")
    crop = make_baseline("pca", graph, 4, OFF, teacher=replace(teacher, spec=spec))
    assert crop.relations is None and "valid_mrr" not in crop.about
