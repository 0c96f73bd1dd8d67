"""DT: a size trained alone."""

from __future__ import annotations

import numpy as np
import pytest

from medapps.baselines.direct import alone, default_rate
from medapps.baselines.registry import make_baseline
from medapps.train.config import MedConfig
from medapps.train.med import train_med
from tests.baselines.conftest import OFF, short


def test_dt_is_a_med_training_with_one_prefix(graph, train):
    crop = make_baseline("dt", graph, 8, OFF, train=train, seed=3)
    config = short(dims=(8,)).changed(lr=default_rate(train, 8))
    embedding = train_med(graph, config, seed=3)
    assert np.array_equal(crop.entities, embedding.entities)
    assert np.array_equal(crop.relations, embedding.relations)
    assert crop.method == "dt" and crop.spec == embedding.specs[0]
    assert crop.about["train_seconds"] == crop.about["own_seconds"] > 0


def test_settings_of_several_prefixes_do_not_reach_one_alone():
    med = MedConfig(
        dims=(4, 16), margin=(3.0, 6.0), ml_down=1.0, negative_weights="smaller", dlw="fixed",
        negative_norm="batch", patience=2, epochs=7, lr=0.3,
    )  # fmt: skip
    config = alone(med, 4)
    plain = MedConfig(
        dims=(4,), margin=3.0, scale_power=0.0, distil=0.0, epochs=7, lr=0.3 * 4**0.25
    )
    assert config == plain
    assert [alone(med, dim).loss.margin for dim in (2, 4, 5, 16, 99)] == [3.0, 3.0, 6.0, 6.0, 6.0]


def test_a_small_model_takes_a_larger_rate():
    med = MedConfig(dims=(160, 640), lr=0.1)
    assert [default_rate(med, dim) for dim in (40, 160, 640)] == pytest.approx(
        [0.2, 0.1 * 2**0.5, 0.1]
    )


def test_a_model_alone_has_the_numbers_of_a_stretched_prefix_of_sums():
    med = MedConfig(
        scorer="rotate", norm="moduli", dims=(4, 64), scale_power=1, init_norm=0.25, lr=0.03
    )
    config = alone(med, 4)
    assert config.optimiser.init_norm / 4**0.5 == pytest.approx(16 * 0.25 / 64**0.5)
    assert config.optimiser.lr == pytest.approx(16 * 0.03)
    assert config.optimiser.lr * config.optimiser.relation_rate == pytest.approx(0.03)
    paired = MedConfig(scorer="pairre", norm="l1", dims=(4, 64), keep_length=True, lr=0.3)
    config = alone(paired, 4)
    assert (config.optimiser.init_norm, config.optimiser.lr, config.optimiser.relation_rate) == (
        1.0,
        pytest.approx(1.2),
        1.0,
    )


def test_a_model_alone_is_penalised_for_one_loss_of_scores_that_are_not_stretched():
    med = MedConfig(dims=(4, 8, 16), scorer="simple", penalty=0.3, scale_power=0.5)
    assert alone(med, 16).loss.penalty == pytest.approx(
        0.1
    )  # MED's first numbers have three losses
    assert alone(med, 4).loss.penalty == pytest.approx(
        0.05
    )  # and MED doubles the scores of four dims
    apart = med.changed(from_larger=0.0)
    assert alone(apart, 16).loss.penalty == pytest.approx(0.3)
    plain = med.changed(scale_power=0.0)
    assert alone(plain, 4).loss.penalty == alone(plain, 16).loss.penalty
