"""A scorer of one differentiable function: the same gradients as a hand-written one, and it trains.

The scorer is the example of docs/add_a_scorer.md.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from medapps.evaluate.link_prediction import rank_embedding
from medapps.model.rule import AutogradRule
from medapps.model.rules import RULES, make_scorer, scorer_of
from medapps.train.config import MedConfig
from medapps.train.med import train_med

F64 = torch.float64
DIMS = (3, 7, 12)


def slow_distmult() -> AutogradRule:
    """The class of the documentation."""
    text = (Path(__file__).parents[2] / "docs" / "add_a_scorer.md").read_text()
    place: dict = {}
    exec(text.split("```python\n")[1].partition("```")[0], place)
    return place["SlowDistMult"]()


def rows(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, DIMS[-1], generator=generator, dtype=F64)


@pytest.mark.parametrize("side", ["head", "tail"])
@pytest.mark.parametrize("share", [1.0, 0.3])
def test_its_gradients_are_those_of_the_hand_written_kernel(side, share):
    found = []
    for scorer in (
        make_scorer("distmult", from_larger=share),
        scorer_of(slow_distmult(), from_larger=share),
    ):
        source, relation, entity = rows(5, 1), rows(5, 2), rows(4, 3)
        bounds, query = scorer.bounds(DIMS), scorer.query(source, relation, side)
        upstream = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(4), dtype=F64)
        out = scorer.pairs(query, entity, bounds, torch.empty_like(upstream))
        grads = torch.zeros_like(query), torch.zeros_like(entity)
        scorer.pairs_backward(upstream.clone(), out, (query, entity), bounds, grads)
        own = entity.expand(5, 4, -1).contiguous()
        near, kept = scorer.aligned(query, own, bounds)
        dquery, down = scorer.aligned_backward(upstream.clone(), near, kept, bounds)
        results = [out, near, grads[1], down]
        for dq in (grads[0], dquery):
            ends = torch.empty_like(source), torch.empty_like(relation)
            scorer.rule.query_backward(dq, (source, relation), side, ends)
            results += ends
        found.append(results)
    for ours, truth in zip(*found, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-10, atol=1e-10)


def test_it_trains_to_the_tables_of_the_hand_written_one(graph, monkeypatch):
    monkeypatch.setitem(RULES, "slow", slow_distmult())
    given = {"dims": (4, 8), "epochs": 2, "batch": 64, "chunk": 32, "negatives": 16, "threads": 1}
    slow, fast = (
        train_med(graph, MedConfig(scorer=name, margin=0.0, **given), seed=1)
        for name in ("slow", "distmult")
    )
    np.testing.assert_allclose(slow.entities, fast.entities, atol=1e-4)
    assert rank_embedding(slow, graph)[1]["dims"]["8"]["mrr"] == pytest.approx(
        rank_embedding(fast, graph)[1]["dims"]["8"]["mrr"], abs=0.02
    )
