"""One-pass prefix distances against n naive passes, in float64."""

from __future__ import annotations

import pytest
import torch

from medapps.crop.score import EPSILON
from medapps.embed.score import bounds_of, make_scorer, segment_sums

DIMS = [(3, 7, 20), (5,), tuple(range(2, 25, 2)), (1, 2, 9, 10, 11, 12, 13, 14, 15, 20)]
NORMS = ["l2", "l1", "l2sq"]


def naive(norm: str, query: torch.Tensor, entity: torch.Tensor, dims: tuple[int, ...]):
    """(n, ...) distances of broadcastable query and entity, one pass per prefix."""
    out = []
    for d in dims:
        x = query[..., :d] - entity[..., :d]
        squares = (x * x).sum(-1)
        out.append({"l2": (squares + EPSILON).sqrt(), "l2sq": squares, "l1": x.abs().sum(-1)}[norm])
    return torch.stack(out)


def rows(count: int, width: int, seed: int, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dims", DIMS)
def test_pairs_and_their_gradients_equal_naive_passes(norm, dims):
    scorer, bounds, n = make_scorer("transe", norm), (0, *dims), len(dims)
    q, e = (rows(6, dims[-1], s).requires_grad_() for s in (1, 2))
    e = rows(9, dims[-1], 3).requires_grad_()
    upstream = torch.randn(n, 6, 9, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    truth = naive(norm, q[:, None], e[None], dims)
    truth.backward(upstream)
    with torch.no_grad():
        out = scorer.pairs(q, e, bounds, torch.empty(n, 6, 9, dtype=torch.float64))
        torch.testing.assert_close(out, truth.detach(), rtol=0, atol=1e-10)
        dq, de = torch.zeros_like(q), torch.zeros_like(e)
        scorer.pairs_backward(upstream.clone(), out, q, e, bounds, dq, de)
    torch.testing.assert_close(dq, q.grad, rtol=0, atol=1e-10)
    torch.testing.assert_close(de, e.grad, rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("k", [1, 4])
def test_aligned_and_their_gradients_equal_naive_passes(norm, dims, k):
    scorer, bounds, n = make_scorer("transe", norm), (0, *dims), len(dims)
    q = rows(6, dims[-1], 1).requires_grad_()
    e = rows(6 * k, dims[-1], 2).view(6, k, -1).requires_grad_()
    upstream = torch.randn(n, 6, k, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    truth = naive(norm, q[:, None], e, dims)
    truth.backward(upstream)
    with torch.no_grad():
        out, kept = scorer.aligned(q, e, bounds)
        torch.testing.assert_close(out, truth.detach(), rtol=0, atol=1e-10)
        dq, de = scorer.aligned_backward(upstream.clone(), out, kept, bounds)
    torch.testing.assert_close(dq, q.grad, rtol=0, atol=1e-10)
    torch.testing.assert_close(de, e.grad, rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("side", ["tail", "head"])
def test_gradcheck_of_the_whole_scorer(norm, side):
    """Query, pairs and both backward passes as one function, by finite differences."""
    scorer, dims = make_scorer("transe", norm), (2, 5)
    bounds = bounds_of(scorer, dims)

    class Score(torch.autograd.Function):
        @staticmethod
        def forward(ctx, source, relation, entity):
            q = scorer.query(source, relation, side, torch.empty_like(source))
            out = scorer.pairs(q, entity, bounds, source.new_empty(2, len(source), len(entity)))
            ctx.save_for_backward(source, relation, entity, q, out)
            return out.clone()

        @staticmethod
        def backward(ctx, grad):
            source, relation, entity, q, out = ctx.saved_tensors
            dq, ds, dr = torch.zeros_like(q), torch.empty_like(q), torch.empty_like(q)
            de = torch.zeros_like(entity)
            scorer.pairs_backward(grad.clone(), out, q, entity, bounds, dq, de)
            scorer.query_backward(dq, source, relation, side, ds, dr)
            return ds, dr, de

    inputs = [rows(4, 5, s).requires_grad_() for s in (1, 2, 3)]
    assert torch.autograd.gradcheck(Score.apply, inputs)


def test_both_sides_measure_the_same_distance():
    head, relation, tail = (rows(8, 12, s) for s in (1, 2, 3))
    scorer, bounds = make_scorer("transe", "l2"), (0, 4, 12)
    asked_tail = scorer.query(head, relation, "tail", torch.empty_like(head))
    asked_head = scorer.query(tail, relation, "head", torch.empty_like(head))
    one, _ = scorer.aligned(asked_tail, tail[:, None], bounds)
    two, _ = scorer.aligned(asked_head, head[:, None], bounds)
    torch.testing.assert_close(one, two)


def test_gradients_stay_finite_at_distance_zero():
    scorer, bounds = make_scorer("transe", "l2"), (0, 2, 6)
    q = rows(3, 6, 1, torch.float32)
    distance, kept = scorer.aligned(q, q[:, None].clone(), bounds)
    dq, de = scorer.aligned_backward(torch.ones_like(distance), distance, kept, bounds)
    assert torch.isfinite(dq).all() and torch.isfinite(de).all()
    out = scorer.pairs(q, q.clone(), bounds, torch.empty(2, 3, 3))
    dq, de = torch.zeros_like(q), torch.zeros_like(q)
    scorer.pairs_backward(torch.ones_like(out), out, q, q.clone(), bounds, dq, de)
    assert dq.abs().max() < 10 and de.abs().max() < 10


@pytest.mark.parametrize("norm", ["l2", "l2sq"])
def test_bf16_products_stay_near_float32(norm):
    dims, bounds = (10, 100, 500), (0, 10, 100, 500)
    q, e = rows(64, 500, 1, torch.float32) / 10, rows(32, 500, 2, torch.float32) / 10
    scorers = [make_scorer("transe", norm, bf16=b) for b in (False, True)]
    out = [scorer.pairs(q, e, bounds, torch.empty(3, 64, 32)) for scorer in scorers]
    assert ((out[0] - out[1]).abs() / out[0]).max() < 0.02
    grads = []
    for scorer, distance in zip(scorers, out, strict=True):
        dq, de = torch.zeros_like(q), torch.zeros_like(e)
        upstream = torch.full((len(dims), 64, 32), 0.01)
        scorer.pairs_backward(upstream, distance, q, e, bounds, dq, de)
        grads.append(torch.cat([dq.flatten(), de.flatten()]))
    assert torch.nn.functional.cosine_similarity(*grads, dim=0) > 0.999


def test_segment_sums_of_many_segments_equal_slices():
    x, bounds = rows(5, 40, 1), tuple(range(0, 41, 4))
    sums = torch.stack([x[:, a : a + 4].sum(1) for a in range(0, 40, 4)])
    torch.testing.assert_close(segment_sums(x, bounds), sums)
