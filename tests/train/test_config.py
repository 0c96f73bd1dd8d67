"""Settings of a training: one value for all dims or one per dim."""

from __future__ import annotations

import pytest

from medapps.config import resolve
from medapps.errors import MedappsError
from medapps.settings import Settings
from medapps.train.config import LEAVES, MedConfig


@pytest.mark.parametrize("name", ["margin", "temperature", "distil"])
def test_one_value_per_dim_or_one_for_all(name):
    assert getattr(MedConfig(dims=(4, 8), **{name: 3.0}), f"{name}s") == (3.0, 3.0)
    assert getattr(MedConfig(dims=(4, 8), **{name: (1.0, 2.0)}), f"{name}s") == (1.0, 2.0)
    with pytest.raises(ValueError, match=f"3 {name}s for 2 dims; give one per dim"):
        MedConfig(dims=(4, 8), **{name: (1.0, 2.0, 3.0)})


def test_other_dims_take_the_values_of_the_next_larger_one():
    config = MedConfig(dims=(10, 40, 160), margin=(2.0, 3.0, 4.0), temperature=1.0, epochs=7)
    other = config.resized([5, 10, 20, 160, 320], lr=0.5)
    assert other.loss.margin == (2.0, 2.0, 3.0, 4.0, 4.0)
    assert (other.loss.temperature, other.epochs, other.optimiser.lr) == (1.0, 7, 0.5)
    assert config.resized([40]) == MedConfig(dims=(40,), margin=3.0, temperature=1.0, epochs=7)
    assert config.resized(config.dims) == config


def test_a_size_alone_drops_the_share_of_its_own():
    config = MedConfig(scorer="pairre", dims=(10, 40, 160), drop=(0.0, 0.1, 0.3))
    assert [config.resized([dim]).loss.drop for dim in config.dims] == [0.0, 0.1, 0.3]


def test_a_temperature_of_zero_is_for_all_dims():
    assert MedConfig(dims=(4, 8), temperature=0.0).temperatures == (0.0, 0.0)
    with pytest.raises(ValueError, match="greater than 0"):
        MedConfig(dims=(4, 8), temperature=(0.0, 2.0))


def test_only_scores_that_do_not_know_lengths_keep_them():
    assert MedConfig(scorer="pairre", keep_length=True).optimiser.keep_length
    with pytest.raises(ValueError, match="scores of rotate know lengths"):
        MedConfig(scorer="rotate", keep_length=True)


def test_a_setting_may_be_given_with_or_without_its_group():
    short = MedConfig(
        dims=(4, 8), lr=0.5, batch=64, optimiser="lazy_adam", patience=3, device="cpu"
    )
    full = MedConfig(
        dims=(4, 8),
        optimiser={"lr": 0.5, "name": "lazy_adam"},
        sampling={"batch": 64},
        validation={"patience": 3},
        hardware={"device": "cpu"},
    )
    assert short == full == MedConfig(**full.plain())
    assert full.changed(optimiser="adagrad").optimiser.lr == 0.5
    assert (full.changed(lr=0.1).optimiser.lr, full.changed(lr=0.1).optimiser.name) == (
        0.1,
        "lazy_adam",
    )


def test_later_settings_win_whether_or_not_they_name_their_group(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("train: {lr: 0.3, optimiser: {rate_power: 0.25}}\n")
    for sets in (["train.optimiser.lr=0.1"], ["train.lr=0.7", "train.lr=0.1"]):
        train = resolve(Settings, file=file, sets=sets).train
        assert (train.optimiser.lr, train.optimiser.rate_power) == (0.1, 0.25)
    named = resolve(Settings, file=file, sets=["train.optimiser=lazy_adam"]).train.optimiser
    assert (named.name, named.lr, named.rate_power) == ("lazy_adam", 0.3, 0.25)


def test_scorers_have_defaults_that_settings_overrule():
    assert MedConfig(scorer="rotate").optimiser.rate_power == 0.25
    assert MedConfig(scorer="rotate", optimiser={"lr": 0.1}).optimiser.rate_power == 0.25
    assert MedConfig(scorer="rotate", rate_power=0.0).optimiser.rate_power == 0.0


def test_no_two_groups_share_the_name_of_a_setting():
    sections = [section for name in MedConfig.model_fields if (section := MedConfig.section(name))]
    assert sum(len(section.model_fields) for section in sections) == len(LEAVES)
    assert not LEAVES.keys() & MedConfig.model_fields.keys()


def test_an_unknown_setting_names_the_nearest_one():
    with pytest.raises(MedappsError, match=r"unknown key 'train.negativs'.*train.sampling.negat"):
        resolve(Settings, sets=["train.negativs=3"])
    with pytest.raises(MedappsError, match=r"'train.loss.margn'; did you mean 'train.loss.margin'"):
        resolve(Settings, sets=["train.loss.margn=3"])
