"""Every baseline makes a crop like any other."""

from __future__ import annotations

import pytest

from medapps.baselines.registry import MAKERS, check_request, make_baseline, teacher_dim
from medapps.errors import MedappsError
from medapps.train.config import MedConfig
from tests.baselines.conftest import OFF
from tests.contracts import assert_maker


@pytest.mark.parametrize("name", MAKERS)
def test_each_baseline_keeps_the_contract_of_a_crop(graph, train, teacher, tmp_path, name):
    given = {"train": train, "seed": 7, "teacher": teacher}
    crop = assert_maker(
        lambda: make_baseline(name, graph, 5, OFF, **given), tmp_path, graph.entities
    )
    assert (crop.dim, crop.method) == (5, name)
    assert list(crop.users) == list(graph.users)
    about = crop.about
    assert about["train_seconds"] == about["own_seconds"] + about["teacher_seconds"]
    assert about["own_seconds"] > 0 and (about["teacher_seconds"] > 0) == (name != "dt")
    assert 0 < about["valid_mrr"] <= 1


@pytest.mark.parametrize("name", ["dt", "bkd"])
def test_another_seed_makes_another_crop(graph, train, teacher, name):
    one, other = (
        make_baseline(name, graph, 5, OFF, train=train, seed=seed, teacher=teacher)
        for seed in (0, 1)
    )
    assert (one.entities != other.entities).mean() > 0.9


def test_without_a_teacher_one_is_trained(graph, train):
    crop = make_baseline("ext", graph, 4, OFF, train=train, seed=1)
    assert crop.about["teacher"] == {"method": "dt", "dim": 16}
    assert crop.about["teacher_seconds"] > 0


def test_the_teacher_is_as_large_as_the_largest_size():
    assert teacher_dim(OFF, MedConfig(dims=(10, 30))) == 30
    assert teacher_dim(OFF.model_copy(update={"teacher_dim": 64}), MedConfig(dims=(10, 30))) == 64


@pytest.mark.parametrize(
    ("name", "dim", "words"),
    [
        ("dual", 4, r"no baseline 'dual'; did you mean 'dualde'\?.*iterde"),
        ("EXT_L", 4, r"no baseline 'EXT_L'"),
        ("pca", 16, r"16 dimensions are not fewer than the teacher's 16.*--teacher-dim"),
        ("bkd", 17, r"not fewer"),
        ("dt", 0, r"at least 1"),
    ],
)
def test_wrong_orders_are_refused_in_a_sentence(name, dim, words):
    with pytest.raises(MedappsError, match=words):
        check_request(name, dim, 16)


def test_dt_may_be_as_large_as_it_likes():
    check_request("dt", 1000, 16)
