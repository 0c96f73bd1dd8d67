"""Every baseline works with every scorer."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from medapps.baselines.registry import MAKERS, make_baseline
from medapps.crop.crop import Crop
from medapps.model.rules import RULES
from medapps.train.config import MedConfig
from tests.baselines.conftest import OFF, make_graph
from tests.contracts import assert_maker


def settings(scorer: str) -> MedConfig:
    return MedConfig(
        scorer=scorer, dims=(4, 16), epochs=2, batch=128, chunk=64, negatives=16, threads=1,
        every=100, lr=0.3,
    )  # fmt: skip


@cache
def teacher(scorer: str) -> Crop:
    return make_baseline("dt", make_graph(), 16, OFF, train=settings(scorer))


@pytest.mark.parametrize("scorer", [name for name in RULES if name != "transe"])
@pytest.mark.parametrize("name", MAKERS)
def test_each_baseline_keeps_the_contract_of_a_crop(name, scorer, tmp_path):
    graph = make_graph()
    given = {"train": settings(scorer), "seed": 7, "teacher": teacher(scorer)}
    crop = assert_maker(
        lambda: make_baseline(name, graph, 5, OFF, **given), tmp_path, graph.entities
    )
    entity, relation, _ = RULES[scorer].REALS
    if name == "pca":  # vectors for the tasks; a projection of this scorer scores no triples
        assert crop.width == 5 and crop.relations is None
        return
    assert crop.width == 5 * entity and crop.relations is not None
    assert crop.relations.shape[1] == 5 * relation
    assert crop.spec.scorer == scorer and 0 < crop.about["valid_mrr"] <= 1


@pytest.mark.parametrize("scorer", RULES)
def test_extraction_keeps_the_numbers_of_a_coordinate_together(scorer):
    graph, source = make_graph(), teacher(scorer)
    crop = make_baseline("ext-l", graph, 3, OFF, train=settings(scorer), teacher=source)
    kept = crop.about["coordinates"]
    for small, large in ((crop.entities, source.entities), (crop.relations, source.relations)):
        shape = (len(large), 16, -1)
        assert np.array_equal(small.reshape(len(large), 3, -1), large.reshape(shape)[:, kept])
