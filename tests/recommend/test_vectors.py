"""What a crop or a table of vectors gives a recommender."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from medapps.crop.service import NamedVectors
from medapps.errors import MedappsError
from medapps.graph.ids import IdMap
from medapps.graph.split import split_purchases
from medapps.recommend.problem import problem_of
from medapps.recommend.vectors import graph_of, users_of
from tests.recommend.worlds import USERS, world


def test_a_crop_gives_its_score_and_service_vectors() -> None:
    made = world()
    problem = problem_of(split_purchases(made.bought), users_of(made.crop))
    assert len(problem.users) == USERS + 2  # two have no purchases
    assert np.diff(problem.train.indptr)[problem.users.ids(["user:nobody"])] == 0
    graph, service = graph_of(made.crop, problem)
    assert graph is not None and service is not None and service.items is not None
    names = problem.users.names(np.array([0, 40, USERS + 1]))
    own, _ = made.crop.vectors(names)
    takes = made.crop.relations[1]
    assert service.users[[0, 40, USERS + 1]] == pytest.approx(own + takes, abs=1e-6)
    assert service.items == pytest.approx(made.crop.vectors(problem.items.names())[0])
    assert service.known_users.all() and graph.known_items.all()


def test_a_crop_without_takes_still_gives_service_vectors() -> None:
    made = world()
    problem = problem_of(split_purchases(made.bought), users_of(made.crop))
    other = IdMap.of(pl.Series(["knows", "likes"]))
    for crop in (
        replace(made.crop, relation_ids=other),
        replace(made.crop, relations=None, relation_ids=None),
        NamedVectors(made.crop.entity_ids, np.asarray(made.crop.entities), "table"),
    ):
        graph, service = graph_of(crop, problem)
        assert graph is None and service is not None and service.items is None
        assert service.users == pytest.approx(made.crop.vectors(problem.users.names())[0])


def test_without_a_source_there_is_neither() -> None:
    assert graph_of(None, problem_of(split_purchases(world().bought))) == (None, None)
    assert users_of(None) is None


def test_vectors_that_know_nobody_are_refused() -> None:
    made = world()
    split = split_purchases(made.bought.with_columns(pl.col("user").str.replace("user", "who")))
    problem = problem_of(split, users_of(made.crop))
    with pytest.raises(MedappsError, match=rf"none of the {USERS} users.*name users the same way"):
        graph_of(made.crop, problem)
    strangers = NamedVectors(IdMap.of(pl.Series(["x"])), np.ones((1, 3), np.float32), "table")
    with pytest.raises(MedappsError, match=r"None of the .* users is in the graph"):
        graph_of(strangers, problem)


@pytest.mark.parametrize("row", ["user:003", "item:07"])
def test_vectors_that_are_no_numbers_are_refused(row: str) -> None:
    made = world()
    broken = np.array(made.crop.entities)
    broken[made.crop.entity_ids.ids([row])[0], 1] = np.nan
    problem = problem_of(split_purchases(made.bought))
    with pytest.raises(MedappsError, match="not finite"):
        graph_of(replace(made.crop, entities=broken), problem)
