"""The whole recommender on a checkerboard, and references on the same data."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from medapps.errors import MedappsError
from medapps.model.rule import ScoreSpec
from medapps.recommend.evaluation.metrics import list_metrics
from medapps.recommend.evaluation.references import GRIDS, tune
from medapps.recommend.lists import evaluate
from medapps.recommend.mixture import fit
from medapps.recommend.parts.graph_score import graph_score
from tests.recommend.boards import checkerboard

SIZE = 40


def halves() -> tuple[csr_matrix, csr_matrix, csr_matrix]:
    """Training, validation and test purchases: the diagonal, and the square two to its right."""
    train, test = checkerboard(SIZE)
    row = np.arange(SIZE)
    valid = csr_matrix((np.ones(SIZE, np.float32), (row, (row + 2) % SIZE)), (SIZE, SIZE))
    return csr_matrix((train - valid).maximum(0)), valid, test


def test_withheld_squares_come_first_and_new_users_get_their_colour() -> None:
    train, valid, test = halves()
    lines = train.tolil()
    lines[:2] = 0
    train = csr_matrix(lines)
    lines = valid.tolil()
    lines[:2] = 0
    colour = np.tile(np.eye(2, dtype=np.float32), (SIZE // 2, 1))
    noise = np.random.default_rng(0).standard_normal((2 * SIZE, 2)).astype(np.float32) * 0.01
    entities = np.concatenate([colour, colour]) + noise
    rows = np.arange(SIZE)
    graph = graph_score(entities, np.zeros(2, np.float32), ScoreSpec(), rows, SIZE + rows)
    model = fit(train, csr_matrix(lines), graph)
    users = np.arange(2, SIZE)
    ids, _ = model.recommend(users, train, 2)
    both = csr_matrix(valid + test)[users]
    assert list_metrics(ids, both, (2,))["recall_at_2"].mean() == 1
    new, _ = model.recommend(np.arange(2), train, 5)
    assert (new % 2 == np.arange(2)[:, None]).all()


def test_strangers_get_what_is_popular() -> None:
    train, valid, _ = halves()
    model = fit(train, valid)
    purchases = csr_matrix((1, SIZE), dtype=np.float32)
    ids, _ = model.recommend(np.zeros(1, int), purchases, 3)
    count = np.bincount(train.indices, minlength=SIZE)
    assert (count[ids] >= np.sort(count)[-3]).all()


@pytest.mark.parametrize("name", ["itemknn", "ease", "als", "bpr"])
def test_references_are_tuned_and_rank_through_the_same_code(name: str) -> None:
    train, valid, test = halves()
    found = tune(name, train, valid, grid=GRIDS[name][-2:])
    value = evaluate(found.model(train), valid, train)["ndcg_at_10"].mean()
    assert found.valid == pytest.approx(value) and found.setting in GRIDS[name]
    if name != "bpr":
        hits = evaluate(found.model(csr_matrix(train + valid)), test, csr_matrix(train + valid))
        assert hits["hit_at_10"].mean() == 1


def test_an_unknown_reference_is_named() -> None:
    train, valid, _ = halves()
    with pytest.raises(MedappsError, match="no reference 'als2'"):
        tune("als2", train, valid)
