"""Every scorer: one pass for all prefixes against naive passes over stand-alone models, float64."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from medapps.model.kernels import modulus, numba_loops, pairre
from medapps.model.kernels.segments import segment_sums
from medapps.model.rule import EPSILON, Scorer, ScoreSpec
from medapps.model.rules import RULES, make_scorer

F64 = torch.float64
CASES = [(name, norm) for name, rule in RULES.items() for norm in rule.NORMS]
DIMS = [(3, 7, 20), (5,), tuple(range(2, 25, 2)), (1, 2, 9, 10, 11, 12, 13, 14, 15, 20)]
"""Few segments, one, many equal ones, and many unequal ones."""


def truth(name: str, norm: str, h: Tensor, r: Tensor, t: Tensor) -> Tensor:
    """(...,): distances of broadcastable rows, by the textbook formula."""

    def z(x: Tensor) -> Tensor:
        return torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())

    def length(x: Tensor) -> Tensor:
        square = (x.abs() ** 2).sum(-1)
        return {
            "l2": lambda: (square + EPSILON).sqrt(),
            "l1": lambda: x.abs().sum(-1),
            "moduli": lambda: x.abs().sum(-1),
        }[norm]()

    def unit(x: Tensor) -> Tensor:
        return x / (x.square().sum(-1, keepdim=True) + EPSILON).sqrt()

    if name == "transe":
        return length(h + r - t)
    if name == "rotate":
        return length(z(h) * torch.polar(torch.ones_like(r), r) - z(t))
    if name == "pairre":
        return length(unit(h) * r[..., 0::2] - unit(t) * r[..., 1::2])
    if name == "simple":
        there = (h[..., 0::2] * r[..., 0::2] * t[..., 1::2]).sum(-1)
        return -(there + (t[..., 0::2] * r[..., 1::2] * h[..., 1::2]).sum(-1)) / 2
    if name == "distmult":
        return -(h * r * t).sum(-1)
    if name == "complex":
        return -(z(h) * z(r) * z(t).conj()).real.sum(-1)
    raise AssertionError(f"write down the formula of {name} here")


def name_of(scorer: Scorer) -> str:
    return next(name for name, rule in RULES.items() if rule is scorer.rule)


def faint(x: Tensor, dims: tuple[int, ...], share: float) -> Tensor:
    """The same values, whose gradients fade by `share` with every size that lies between."""
    reals = x.shape[-1] // dims[-1]
    widths = torch.tensor((0, *dims)).diff() * reals
    powers = share ** torch.arange(len(dims) - 1, -1, -1, dtype=x.dtype)
    weight = powers.repeat_interleave(widths)
    return x.detach() + weight * (x - x.detach())


def naive(
    scorer: Scorer,
    norm: str,
    side: str,
    rows: tuple[Tensor, Tensor, Tensor],
    dims: tuple[int, ...],
    share: float = 1.0,
) -> Tensor:
    """(n, ...): one pass per prefix for source, relation and asked rows that broadcast."""
    out = []
    for i, dim in enumerate(dims):
        widths = scorer.widths(dim)
        cut = (x[..., : widths[w]] for x, w in zip(rows, (0, 1, 0), strict=True))
        source, relation, asked = (faint(x, dims[: i + 1], share) for x in cut)
        ends = (source, relation, asked) if side == "tail" else (asked, relation, source)
        out.append(truth(name_of(scorer), norm, *ends))
    return torch.stack(out)


def rows(count: int, width: int, seed: int, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def given(scorer: Scorer, dim: int, b: int = 6, k: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    """Source (b, .), relation (b, .) and asked rows (k, .), as leaves."""
    entity, relation, _ = scorer.widths(dim)
    made = rows(b, entity, 1), rows(b, relation, 2), rows(k, entity, 3)
    return tuple(x.requires_grad_() for x in made)  # type: ignore[return-value]


def close(left: Tensor, right: Tensor | None) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("side", ["tail", "head"])
@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize(("name", "norm"), CASES)
def test_pairs_and_their_gradients_equal_naive_passes(name, norm, dims, share, side):
    scorer = make_scorer(name, norm, from_larger=share)
    bounds, n = scorer.bounds(dims), len(dims)
    source, relation, asked = given(scorer, dims[-1])
    broad = source[:, None], relation[:, None], asked[None]
    expected = naive(scorer, norm, side, broad, dims, share)
    upstream = rows(n * 6, 9, 4).view(n, 6, 9)
    expected.backward(upstream)
    with torch.no_grad():
        query = scorer.query(source, relation, side)
        out = scorer.pairs(query, asked, bounds, torch.empty(n, 6, 9, dtype=F64))
        close(out, expected.detach())
        dquery, dasked = torch.zeros_like(query), torch.zeros_like(asked)
        scorer.pairs_backward(upstream.clone(), out, (query, asked), bounds, (dquery, dasked))
        dsource, drelation = torch.empty_like(source), torch.empty_like(relation)
        scorer.rule.query_backward(dquery, (source, relation), side, (dsource, drelation))
    for got, leaf in ((dsource, source), (drelation, relation), (dasked, asked)):
        close(got, leaf.grad)


@pytest.mark.parametrize("threads", [1, 3])
def test_compiled_sums_of_moduli_equal_those_of_other_devices(threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    cuts = (0, 2, 5, 20)
    query, asked = rows(7, 40, 1, torch.float32), rows(5, 40, 2, torch.float32)
    upstream = rows(3 * 7, 5, 3, torch.float32).view(3, 7, 5)
    found = []
    for sums, gradients in (
        (numba_loops.modulus_sums, numba_loops.add_modulus_gradients),
        (modulus._block_sums, modulus._add_block_gradients),
    ):
        out = torch.empty(3, 7, 5)
        sums(query, asked, cuts, out)
        ends = torch.ones_like(query), torch.ones_like(asked)
        gradients(upstream, (query, asked), cuts, ends)
        found.append((out, *ends))
    for left, right in zip(*found, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 3])
def test_compiled_paired_sums_equal_those_of_other_devices(threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    x, v, y = rows(7, 20, 1), rows(7, 20, 2), rows(5, 20, 3)
    found = []
    for sums, gradients in (
        (numba_loops.stretched_sums, numba_loops.stretched_gradients),
        (pairre._block_sums, pairre._block_gradients),
    ):
        out = torch.empty(7, 5, dtype=F64)
        sums(x, v, y, out)
        found.append((out, *gradients(rows(7, 5, 4), x, v, y)))
    for left, right in zip(*found, strict=True):
        close(left, right)


THREADS = """
import json, numba, numpy, torch
torch.set_num_threads(1)
from medapps.model.kernels import numba_loops
found = []
query, entity = (numpy.ones((n, 320), numpy.float32) for n in (512, 256))
out = numpy.empty((2, 512, 256), numpy.float32)
for threads in (1, 2):
    torch.set_num_threads(threads)
    numba_loops.modulus_sums(query, entity, numpy.array([0, 40, 160]), out)
    found.append([torch.get_num_threads(), numba.get_num_threads(), numba_loops.MOST])
print(json.dumps(found))
"""


def test_compiled_sums_use_as_many_threads_as_torch():
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, check=True)
    one, two = json.loads(done.stdout)
    assert one[:2] == [1, 1]
    assert two[:2] == [2, min(2, two[2])]


def test_a_number_that_is_not_finite_is_not_lost_in_compiled_sums():
    query = rows(2, 8, 1, torch.float32)
    query[1, 3] = torch.nan
    out = torch.empty(1, 2, 3)
    numba_loops.modulus_sums(query, rows(3, 8, 2, torch.float32), (0, 4), out)
    assert out[0, 0].isfinite().all() and out[0, 1].isnan().all()


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize(("name", "norm"), CASES)
def test_aligned_and_their_gradients_equal_naive_passes(name, norm, dims, share, k):
    scorer = make_scorer(name, norm, from_larger=share)
    bounds, n = scorer.bounds(dims), len(dims)
    source, relation, asked = given(scorer, dims[-1], k=6 * k)
    own = asked.view(6, k, -1)
    broad = source[:, None], relation[:, None], own
    expected = naive(scorer, norm, "tail", broad, dims, share)
    upstream = rows(n * 6, k, 4).view(n, 6, k)
    expected.backward(upstream)
    with torch.no_grad():
        query = scorer.query(source, relation, "tail")
        out, kept = scorer.aligned(query, own, bounds)
        close(out, expected.detach())
        dquery, dasked = scorer.aligned_backward(upstream.clone(), out, kept, bounds)
        dsource, drelation = torch.empty_like(source), torch.empty_like(relation)
        scorer.rule.query_backward(dquery, (source, relation), "tail", (dsource, drelation))
    close(dasked.reshape(asked.shape), asked.grad)
    close(dsource, source.grad)
    close(drelation, relation.grad)


@pytest.mark.parametrize("side", ["tail", "head"])
@pytest.mark.parametrize(("name", "norm"), CASES)
def test_gradcheck_of_the_whole_scorer(name, norm, side):
    """Query, pairs and both backward passes as one function, by finite differences."""
    scorer, dims = make_scorer(name, norm), (2, 5)
    bounds = scorer.bounds(dims)

    class Score(torch.autograd.Function):
        @staticmethod
        def forward(ctx, source, relation, entity):
            query = scorer.query(source, relation, side)
            shape = 2, len(source), len(entity)
            out = scorer.pairs(query, entity, bounds, source.new_empty(shape))
            ctx.save_for_backward(source, relation, entity, query, out)
            return out.clone()

        @staticmethod
        def backward(ctx, grad):
            source, relation, entity, query, out = ctx.saved_tensors
            dquery, dentity = torch.zeros_like(query), torch.zeros_like(entity)
            dsource, drelation = torch.empty_like(source), torch.empty_like(relation)
            scorer.pairs_backward(grad.clone(), out, (query, entity), bounds, (dquery, dentity))
            scorer.rule.query_backward(dquery, (source, relation), side, (dsource, drelation))
            return dsource, drelation, dentity

    assert torch.autograd.gradcheck(Score.apply, given(scorer, 5, 4, 4))


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_both_sides_and_both_paths_measure_the_same(name, norm):
    scorer, dims = make_scorer(name, norm), (4, 12)
    bounds = scorer.bounds(dims)
    with torch.no_grad():
        head, relation, tail = given(scorer, 12, 8, 8)
        asked_tail, _ = scorer.aligned(scorer.query(head, relation, "tail"), tail[:, None], bounds)
        asked_head, _ = scorer.aligned(scorer.query(tail, relation, "head"), head[:, None], bounds)
        close(asked_tail, asked_head)
        all_pairs = torch.empty(2, 8, 8, dtype=F64)
        scorer.pairs(scorer.query(head, relation, "tail"), tail, bounds, all_pairs)
        close(all_pairs.diagonal(dim1=1, dim2=2), asked_tail[..., 0])


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_a_device_computes_the_trained_score(name, norm):
    """NumPy in float32 on the rows of a crop against the formula in float64, for every size."""
    scorer, dims, spec = make_scorer(name, norm), (4, 12), ScoreSpec(name, norm, 1.5, 3.0)
    h, r, t = (x.detach() for x in given(scorer, 12, 50, 50))
    expected = 3.0 - 1.5 * naive(scorer, norm, "tail", (h, r, t), dims)
    for i, dim in enumerate(dims):
        width, related, _ = scorer.widths(dim)
        cut = (x[:, :w].float().numpy() for x, w in ((h, width), (r, related), (t, width)))
        got = RULES[name].score(*cut, spec)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected[i], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_float32_is_off_by_no_more_than_the_stated_slack(name, norm):
    scorer, dims = make_scorer(name, norm), (3, 30, 100)
    bounds = scorer.bounds(dims)
    with torch.no_grad():
        source, relation, asked = given(scorer, 100, 20, 30)
        exact = scorer.pairs(
            scorer.query(source, relation, "tail"), asked, bounds, torch.empty(3, 20, 30, dtype=F64)
        )
        query, entity = scorer.query(source.float(), relation.float(), "tail"), asked.float()
        out = scorer.pairs(query, entity, bounds, torch.empty(3, 20, 30))
        for column in range(30):
            true = exact[..., column].float()
            off = (out[..., column] - exact[..., column]).abs()
            assert (off <= scorer.slack(query, entity, true, bounds)).all()


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_gradients_stay_finite_where_query_and_entity_meet(name, norm):
    scorer, bounds = make_scorer(name, norm), make_scorer(name, norm).bounds((2, 6))
    with torch.no_grad():
        source, relation, _ = (x.float() for x in given(scorer, 6, 3, 3))
        query = scorer.query(source, torch.zeros_like(relation), "tail")
        for entity in (source.clone(), torch.zeros_like(source)):
            distance, kept = scorer.aligned(query, entity[:, None], bounds)
            grads = scorer.aligned_backward(torch.ones_like(distance), distance, kept, bounds)
            assert all(torch.isfinite(x).all() for x in grads)
            out = scorer.pairs(query, entity, bounds, torch.empty(2, 3, 3))
            grads = torch.zeros_like(query), torch.zeros_like(entity)
            scorer.pairs_backward(torch.ones_like(out), out, (query, entity), bounds, grads)
            assert all(torch.isfinite(x).all() for x in grads)


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_terms_of_coordinates_add_up_to_the_distance(name, norm):
    scorer = make_scorer(name, norm)
    with torch.no_grad():
        source, relation, asked = given(scorer, 7)
        query = scorer.query(source, relation, "head")
        terms = scorer.terms(query[:, None], asked[None], 7)
        assert terms.shape == (6, 9, 7)
        out = scorer.pairs(query, asked, scorer.bounds((7,)), torch.empty(1, 6, 9, dtype=F64))
        close(scorer.total(terms.sum(-1)), out[0])


def test_single_scores_by_hand():
    """One coordinate each, computed on paper."""
    one = ScoreSpec(norm="l2", scale=2.0, margin=5.0)
    h, t = np.array([[3.0, 4.0]], np.float32), np.array([[1.0, 2.0]], np.float32)

    def of(name: str, relation: list[float], norm: str = "dot", head=h, tail=t) -> float:
        spec = ScoreSpec(name, norm, one.scale, one.margin)
        return float(RULES[name].score(head, np.array([relation], np.float32), tail, spec)[0])

    quarter = float(np.pi / 2)  # (3 + 4i) i = -4 + 3i; minus (1 + 2i) is -5 + i
    assert of("rotate", [quarter], "l2") == pytest.approx(5 - 2 * 26**0.5)
    assert of("rotate", [quarter], "moduli") == pytest.approx(5 - 2 * 26**0.5)
    assert of("complex", [0.0, 1.0]) == pytest.approx(5 + 2 * (-4 * 1 + 3 * 2))
    assert of("simple", [2.0, 10.0]) == pytest.approx(5 + 2 * (3 * 2 * 2 + 1 * 10 * 4) / 2)
    assert of("distmult", [2.0, 10.0]) == pytest.approx(5 + 2 * (3 * 2 * 1 + 4 * 10 * 2))
    sign = np.array([[-0.2]], np.float32)  # unit vectors of one coordinate are signs
    assert of("pairre", [2.0, 3.0], "l2", h[:, :1], sign) == pytest.approx(5 - 2 * (2 + 3))


def test_segment_sums_of_many_segments_equal_slices():
    x, bounds = rows(5, 40, 1), tuple(range(0, 41, 4))
    sums = torch.stack([x[:, a : a + 4].sum(1) for a in range(0, 40, 4)])
    torch.testing.assert_close(segment_sums(x, bounds), sums)
