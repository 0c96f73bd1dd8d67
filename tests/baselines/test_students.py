"""Distilled students: what they equal, what they cost, and how they go on after a stop."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from medapps.baselines.config import (
    BaselineConfig,
    DualConfig,
    IterConfig,
    KdConfig,
    SearchConfig,
    TaConfig,
)
from medapps.baselines.distill import Phase, distill, ramp
from medapps.baselines.dualde import Labels, dual_loss
from medapps.baselines.registry import make_baseline
from medapps.baselines.students import assistant_dim, doublings
from medapps.errors import Interrupted, MedappsError
from medapps.train.session import Session
from tests.baselines.conftest import make_graph, short
from tests.contracts import assert_same

QUIET = SearchConfig(when="off")
DIMS = (10, 20, 40, 80, 160, 320, 640)
PUBLISHED = {  # MRR of directly trained models at DIMS
    "TransE WN18RR": (0.121, 0.176, 0.214, 0.227, 0.233, 0.235, 0.237),
    "SimplE WN18RR": (0.061, 0.257, 0.316, 0.382, 0.409, 0.417, 0.421),
    "RotatE WN18RR": (0.172, 0.409, 0.456, 0.465, 0.471, 0.474, 0.476),
    "PairRE WN18RR": (0.220, 0.342, 0.415, 0.435, 0.449, 0.452, 0.453),
    "TransE FB15k-237": (0.150, 0.277, 0.299, 0.313, 0.315, 0.318, 0.322),
    "SimplE FB15k-237": (0.097, 0.176, 0.236, 0.271, 0.285, 0.291, 0.295),
    "RotatE FB15k-237": (0.254, 0.297, 0.312, 0.317, 0.322, 0.323, 0.325),
    "PairRE FB15k-237": (0.182, 0.243, 0.284, 0.307, 0.319, 0.328, 0.332),
}


@pytest.mark.parametrize("table", PUBLISHED)
def test_the_published_rule_takes_the_next_doubling(table):
    mrr = dict(zip(DIMS, PUBLISHED[table], strict=True))
    for student in DIMS[:5]:
        exception = table == "TransE FB15k-237" and student == 80
        assert assistant_dim(mrr, student, 640) == (320 if exception else 2 * student)


def test_chains_double_up_to_the_teacher():
    assert doublings(10, 640) == [20, 40, 80, 160, 320]
    assert doublings(10, 500) == [20, 40, 80, 160, 320]
    assert doublings(100, 500) == [200]  # 400 to 500 would be a hop of little use
    assert doublings(320, 640) == [] and doublings(450, 500) == []


def test_the_ramp_grows_from_nothing_to_its_weight():
    assert [ramp(e, 0.5, 2.0) for e in (0.0, 0.5, 1.0)] == [0.0, 0.125, 0.5]


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("bkd", BaselineConfig(search=QUIET, kd=KdConfig(weight=0.0))),
        ("iterde", BaselineConfig(search=QUIET, iterde=IterConfig(weight=0.0))),
    ],
)
def test_a_student_that_ignores_its_teacher_is_trained_directly(
    graph, train, teacher, name, config
):
    student = make_baseline(name, graph, 12, config, train=train, seed=2, teacher=teacher)
    alone = make_baseline("dt", graph, 12, config, train=train, seed=2)
    np.testing.assert_allclose(student.entities, alone.entities, atol=2e-4)
    np.testing.assert_allclose(student.relations, alone.relations, atol=2e-4)


@pytest.mark.parametrize(
    ("name", "margin", "found"),
    [("bkd", "own", 1.0), ("bkd", "teacher", 3.0), ("ta", "own", 1.0), ("iterde", "own", 3.0)],
)
def test_only_students_that_compare_raw_scores_need_the_teachers_margin(graph, name, margin, found):
    train = short(epochs=1, dims=(4, 16)).changed(margin=(1.0, 3.0))
    config = BaselineConfig(search=QUIET, kd=KdConfig(margin=margin))
    teacher = make_baseline("dt", graph, 16, config, train=train)
    student = make_baseline(name, graph, 4, config, train=train, teacher=teacher)
    assert (teacher.spec.margin, student.spec.margin) == (3.0, found)


def test_a_student_drops_the_coordinates_that_a_direct_training_drops(graph):
    train = short().changed(scorer="pairre", drop=0.4)
    config = BaselineConfig(search=QUIET, kd=KdConfig(weight=0.0))
    teacher = make_baseline("dt", graph, 16, config, train=train, seed=1)
    student = make_baseline("bkd", graph, 12, config, train=train, seed=2, teacher=teacher)
    alone, whole = (
        make_baseline("dt", graph, 12, config, train=x, seed=2)
        for x in (train, train.changed(drop=0.0))
    )
    np.testing.assert_allclose(student.entities, alone.entities, atol=2e-4)
    np.testing.assert_allclose(student.relations, alone.relations, atol=2e-4)
    assert np.abs(alone.entities - whole.entities).max() > 0.01


@pytest.mark.parametrize("name", ["bkd", "ta", "iterde"])
def test_students_rank_more_like_their_teacher_than_a_direct_training(graph, teacher, name):
    config = BaselineConfig(search=QUIET, kd=KdConfig(share=0.8))
    truth = _ranks(teacher, graph)
    distance = {
        method: np.abs(
            _ranks(make_baseline(method, graph, 5, config, train=short(8), teacher=teacher), graph)
            - truth
        ).mean()
        for method in (name, "dt")
    }
    assert distance[name] < 0.95 * distance["dt"]


def test_dualde_brings_positives_and_hard_negatives_nearer_to_the_teacher(graph, teacher):
    config = BaselineConfig(search=QUIET, dualde=DualConfig(structure=0.0, second=0.0))
    train = short(12).changed(lr=0.8)
    truth = _scores(teacher, graph)
    positive = np.arange(len(truth)), graph.test[:100, 2]
    gap = {}
    for name in ("dualde", "dt"):
        crop = make_baseline(name, graph, 5, config, train=train, teacher=teacher)
        scores = _scores(crop, graph)
        away = np.abs(scores - truth)
        hard = np.exp(2 * scores) / np.exp(2 * scores).sum(1, keepdims=True)
        gap[name] = away[positive].mean() + (hard * away).sum(1).mean()
    assert gap["dualde"] < 0.8 * gap["dt"]


def _scores(crop, graph):
    """(queries, entities): scores of every tail for the first test queries."""
    h, r = graph.test[:100, 0], graph.test[:100, 1]
    q = crop.entities[h] + crop.relations[r]
    return crop.spec.margin - np.sqrt(((q[:, None] - crop.entities[None]) ** 2).sum(2))


def _ranks(crop, graph):
    """Order in which a crop puts all tails for the first test queries, (queries, entities)."""
    h, r = graph.test[:50, 0], graph.test[:50, 1]
    q = crop.entities[h] + crop.relations[r]
    away = ((q[:, None] - crop.entities[None]) ** 2).sum(2)
    return np.argsort(np.argsort(away, 1), 1).astype(float)


def test_costs_add_up_along_the_chain(graph, train, teacher):
    made = {}

    def earlier(name, dim):
        made[name, dim] = make_baseline(name, graph, dim, train=train, teacher=teacher)
        return made[name, dim]

    crop = make_baseline("iterde", graph, 4, train=train, teacher=teacher, earlier=earlier)
    (before,) = made.values()
    assert set(made) == {("iterde", 8)}
    assert crop.about["teacher"] == {"method": "iterde", "dim": 8}
    for above, below in pairwise((teacher, before, crop)):
        about = below.about
        assert about["teacher_seconds"] == above.about["train_seconds"] > 0
        assert about["train_seconds"] == about["own_seconds"] + about["teacher_seconds"]


def test_the_assistant_is_found_by_short_trainings(graph, train, teacher):
    search = SearchConfig(epochs=1, triples=50)
    config = BaselineConfig(search=search)
    crop = make_baseline("ta", graph, 2, config, train=train, teacher=teacher)
    assert crop.about["assistant_dim"] in (4, 8) and crop.about["search_seconds"] > 0
    assert crop.about["teacher"] == {"method": "ta", "dim": crop.about["assistant_dim"]}
    given = BaselineConfig(ta=TaConfig(dim=9))
    assert make_baseline("ta", graph, 2, given, train=train, teacher=teacher).about["teacher"] == {
        "method": "ta",
        "dim": 9,
    }


@pytest.mark.parametrize("dim", [2, 16, 40])
def test_an_assistant_must_stand_between(graph, train, teacher, dim):
    config = BaselineConfig(ta=TaConfig(dim=dim))
    with pytest.raises(MedappsError, match=r"not between"):
        make_baseline("ta", graph, 2, config, train=train, teacher=teacher)


def test_no_size_between_neighbours(graph, train, teacher):
    with pytest.raises(MedappsError, match=r"No size lies between 15 and"):
        make_baseline("ta", graph, 15, train=train, teacher=teacher)


def test_the_teacher_is_left_as_it_was(graph, train, teacher):
    before = teacher.entities.copy(), teacher.relations.copy()
    make_baseline("dualde", graph, 4, train=train, teacher=teacher)
    assert np.array_equal(teacher.entities, before[0])
    assert np.array_equal(teacher.relations, before[1])


def test_both_models_of_dualde_learn_in_the_second_stage(graph, teacher):
    config, labels = short(6, dims=(4,)), Labels(rate=1e-3)
    phases = [
        Phase(6, dual_loss(2.0, 1.0, labels, both=False)),
        Phase(2, dual_loss(2.0, 1.0, labels, both=True), rate=0.1, both=True),
    ]
    learned = distill(graph, teacher, config, phases, Session())
    moved = learned.teacher.entities.numpy() - teacher.entities
    size = np.linalg.norm(moved, axis=1) / np.linalg.norm(teacher.entities, axis=1)
    assert 0 < size.mean() < 0.2  # it moves, and stays the model that it was
    assert (labels.values != Labels().values).any(1).all()


@pytest.mark.parametrize(
    ("name", "steps"), [("bkd", 20), ("dualde", 7), ("dualde", 62), ("dt", 45)]
)
def test_a_stopped_training_goes_on_bit_for_bit(graph, train, teacher, tmp_path, name, steps):
    config = BaselineConfig(search=QUIET)
    given = {"train": train, "seed": 4, "teacher": None if name == "dt" else teacher}
    calls = 0

    def stop():
        nonlocal calls
        calls += 1
        return 15 if calls == steps else 0

    with pytest.raises(Interrupted):
        make_baseline(name, graph, 6, config, **given, checkpoint_dir=tmp_path, stop=stop)
    resumed = make_baseline(name, graph, 6, config, **given, checkpoint_dir=tmp_path)
    assert_same(resumed, make_baseline(name, graph, 6, config, **given))


def test_a_teacher_of_another_graph_is_refused(train, teacher):
    with pytest.raises(MedappsError, match="does not cover"):
        make_baseline("bkd", make_graph(n=120), 4, train=train, teacher=teacher)
