"""Settings of a training: one value for all dims or one per dim."""

from __future__ import annotations

import pytest

from medapps.train.config import MedConfig


@pytest.mark.parametrize("name", ["margin", "temperature", "distil"])
def test_one_value_per_dim_or_one_for_all(name):
    assert getattr(MedConfig(dims=(4, 8), **{name: 3.0}), f"{name}s") == (3.0, 3.0)
    assert getattr(MedConfig(dims=(4, 8), **{name: (1.0, 2.0)}), f"{name}s") == (1.0, 2.0)
    with pytest.raises(ValueError, match=f"3 {name}s for 2 dims; give one per dim"):
        MedConfig(dims=(4, 8), **{name: (1.0, 2.0, 3.0)})


def test_other_dims_take_the_values_of_the_next_larger_one():
    config = MedConfig(dims=(10, 40, 160), margin=(2.0, 3.0, 4.0), temperature=1.0, epochs=7)
    other = config.resized([5, 10, 20, 160, 320], lr=0.5)
    assert other.margin == (2.0, 2.0, 3.0, 4.0, 4.0)
    assert (other.temperature, other.epochs, other.lr) == (1.0, 7, 0.5)
    assert config.resized([40]) == MedConfig(dims=(40,), margin=3.0, temperature=1.0, epochs=7)
    assert config.resized(config.dims) == config


def test_a_size_alone_drops_the_share_of_its_own():
    config = MedConfig(scorer="pairre", dims=(10, 40, 160), drop=(0.0, 0.1, 0.3))
    assert [config.resized([dim]).drop for dim in config.dims] == [0.0, 0.1, 0.3]


def test_a_temperature_of_zero_is_for_all_dims():
    assert MedConfig(dims=(4, 8), temperature=0.0).temperatures == (0.0, 0.0)
    with pytest.raises(ValueError, match="greater than 0"):
        MedConfig(dims=(4, 8), temperature=(0.0, 2.0))


def test_only_scores_that_do_not_know_lengths_keep_them():
    assert MedConfig(scorer="pairre", keep_length=True).keep_length
    with pytest.raises(ValueError, match="scores of rotate know lengths"):
        MedConfig(scorer="rotate", keep_length=True)
