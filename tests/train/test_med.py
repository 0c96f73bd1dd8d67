"""The hand-written loss gradients against autograd, and the traps named in the method notes."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.functional import huber_loss, softplus

from medapps.model.rule import Scorer
from medapps.model.rules import make_scorer
from medapps.train.config import MedConfig
from medapps.train.loss.med import (
    PositiveSlice,
    SubModels,
    Weights,
    negative_weights,
    over_positives,
    pairs,
    positive_weights,
    positives,
    shares,
    step_w3,
)

F64 = torch.float64


def models(
    scale=(2.0, 1.5, 1.0), margin=(4.0, 5.0, 6.0), share=(0.5, 1.0, 2.0), tau=(0.5, 1.0, 1.5),
    distil=(0.0, 0.0, 0.0), dtype=F64,
) -> SubModels:  # fmt: skip
    columns = scale, margin, share, distil[: len(scale)], tau
    return SubModels.from_columns(*columns, device=torch.device("cpu"), dtype=dtype)


def distances(n=3, b=5, k=1, seed=0) -> torch.Tensor:
    return (
        torch.rand(n, b, k, generator=torch.Generator().manual_seed(seed), dtype=F64)
        .mul(6)
        .add(0.2)
    )


def like(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)


def alone(of: int, masked: torch.Tensor | None = None) -> PositiveSlice:
    """Negatives whose positives do not matter: nothing is distilled."""
    none = torch.empty(0)
    return PositiveSlice(none, none, of, masked)


def reference(pos, neg, m: SubModels, w: Weights, mask=None) -> torch.Tensor:
    """The equations of the module docstring, term by term, for autograd."""
    sp = m.margin[:, 0] - m.scale[:, 0] * pos  # (n, B)
    sn = m.margin - m.scale * neg  # (n, B, K)
    n, b, k = sn.shape
    keep = torch.ones(b, k, dtype=torch.bool) if mask is None else ~mask
    total = torch.zeros((), dtype=F64)
    for i in range(n):
        before = None if i == 0 else sp[i - 1].detach()
        if before is None or w.positive_weights == "uniform":
            p = torch.full((b,), 1 / b, dtype=F64)
        else:
            f = {
                "recip_dist": lambda s, i=i: -w.positive_temperature / (pos[i - 1].detach() + 1e-6),
                "prob": lambda s: w.positive_temperature * (1 - torch.sigmoid(s)),
            }[w.positive_weights]
            p = torch.softmax(f(before), 0)
        source = {"own": sn[i], "smaller": sn[i - 1] if i else None, "uniform": None}[
            w.negative_weights
        ]
        logits = (
            torch.zeros(b, k, dtype=F64) if source is None else m.temperature[i] * source.detach()
        )
        logits = logits.masked_fill(~keep, -torch.inf)
        if w.negative_norm == "batch":
            q = torch.softmax(logits.flatten(), 0).view(b, k)
        else:
            q = torch.softmax(logits, 1) / b
        total = total + m.share[i, 0, 0] * (
            (p * softplus(-sp[i])).sum() + (q * softplus(sn[i])).masked_fill(~keep, 0).sum()
        )
    for i in range(1, n):
        for s, one, kept in ((sp, b, None), (sn, b * k, keep)):
            for weight, left, right in (
                (w.ml_down, s[i - 1], s[i].detach()),
                (w.ml_up, s[i - 1].detach(), s[i]),
            ):
                h = huber_loss(left, right, reduction="none")
                h = h if kept is None else h.masked_fill(~kept, 0)
                total = total + weight * h.sum() / one
    return total


CASES = [
    Weights(),
    Weights(negative_weights="smaller", positive_weights="recip_dist"),
    Weights(negative_weights="uniform"),
    Weights(negative_weights="own", negative_norm="batch", positive_weights="prob"),
    Weights(negative_weights="smaller", negative_norm="batch", positive_weights="prob"),
    Weights(negative_weights="uniform", negative_norm="batch", positive_weights="recip_dist"),
    Weights(ml_down=1.0, ml_up=0.25),
    Weights(ml_down=0.5, ml_up=0.5, negative_weights="smaller"),
]


@pytest.mark.parametrize("weights", CASES)
@pytest.mark.parametrize("masked", [False, True])
def test_loss_and_gradient_equal_autograd(weights, masked):
    m, b, k = models(), 5, 7
    pos = distances(b=b)[..., 0].requires_grad_()
    neg = distances(b=b, k=k, seed=1).requires_grad_()
    mask = torch.zeros(b, k, dtype=torch.bool)
    if masked:
        mask[0, 2] = mask[3, 0] = mask[3, 6] = True
    truth = reference(pos, neg, m, weights, mask)
    truth.backward()
    flat = mask.flatten().nonzero().flatten() if masked else None
    with torch.no_grad():
        ei_p, ml_p, dpos = positives(pos.detach().clone(), m, weights)
        near = alone(b, flat)
        ei_n, ml_n, dneg = pairs(
            neg.detach().clone(), m, weights, near, like(neg.detach()), value=True
        )
        total = (m.share[:, 0, 0] * (ei_p + ei_n)).sum() + ml_p + ml_n
    torch.testing.assert_close(total, truth.detach())
    torch.testing.assert_close(dpos, pos.grad)
    torch.testing.assert_close(dneg, neg.grad)


@pytest.mark.parametrize("weights", [Weights(), Weights(ml_down=1.0), CASES[2]])
def test_row_blocks_add_up_to_the_whole_batch(weights):
    m, neg = models(), distances(b=6, k=4)
    whole = pairs(neg.clone(), m, weights, alone(6), like(neg), value=True)
    parts = [
        pairs(x.clone(), m, weights, alone(6), like(x.contiguous()), value=True)
        for x in (neg[:, :2].contiguous(), neg[:, 2:].contiguous())
    ]
    torch.testing.assert_close(torch.cat([p[2] for p in parts], 1), whole[2])
    torch.testing.assert_close(parts[0][0] + parts[1][0], whole[0])
    torch.testing.assert_close(parts[0][1] + parts[1][1], whole[1])


def ml_prefix_gradient(scorer: Scorer, scale: tuple[float, float]) -> torch.Tensor:
    """Gradient of mutual learning alone on the coordinates shared by both prefixes."""
    bounds = (0, 3, 9)
    g = torch.Generator().manual_seed(5)
    q, e = (torch.randn(4, 9, generator=g, dtype=F64) for _ in range(2))
    distance, kept = scorer.aligned(q, e[:, None], bounds)
    m = models(scale, (5.0, 5.0), (0.0, 0.0))
    _, _, grad = positives(distance[..., 0], m, Weights(ml_down=1.0, ml_up=1.0))
    dq, _ = scorer.aligned_backward(grad[..., None].clone(), distance, kept, bounds)
    return dq[:, :3]


def test_symmetric_mutual_learning_never_reaches_the_prefix_of_an_additive_score():
    sums, roots = make_scorer("distmult"), make_scorer("transe")
    assert ml_prefix_gradient(sums, (1.0, 1.0)).abs().max() == 0
    assert ml_prefix_gradient(sums, (3.0, 1.0)).abs().max() > 1e-3
    assert ml_prefix_gradient(roots, (1.0, 1.0)).abs().max() > 1e-3


def test_two_stop_gradient_terms_equal_plain_mutual_learning():
    m, pos = models(share=(0.0, 0.0, 0.0)), distances()[..., 0].requires_grad_()
    s = m.margin[:, 0] - m.scale[:, 0] * pos
    (huber_loss(s[:-1], s[1:], reduction="sum") / s.shape[1]).backward()
    _, _, grad = positives(pos.detach(), m, Weights(ml_down=1.0, ml_up=1.0))
    torch.testing.assert_close(grad, pos.grad)


@pytest.mark.parametrize("mode", ["recip_dist", "prob"])
def test_positive_weights_fall_with_the_score_and_sum_to_one(mode):
    s = torch.tensor([-50.0, -1.0, -1e-6, 0.0, 1e-6, 1.0, 4.9], dtype=F64).expand(2, -1)
    p = positive_weights(5.0 - s, s, mode, 1.0, s.shape[1], over_positives)
    assert torch.isfinite(p).all()
    torch.testing.assert_close(p.sum(1), torch.ones(2, dtype=F64))
    assert (p[0] == p[0, 0]).all(), "the smallest model is uniform"
    assert (p[1].diff() <= 0).all() and p[1, 0] > p[1, -1]


@pytest.mark.parametrize("norm", ["per_positive", "batch"])
@pytest.mark.parametrize("source", ["own", "smaller", "uniform"])
def test_negative_weights_rise_with_the_score_and_sum_to_one(source, norm):
    s = torch.tensor([-50.0, -1e-6, 0.0, 1e-6, 50.0]).expand(3, 2, -1).contiguous()
    w = negative_weights(
        s, (0.5, 1.0, 2.0), Weights(negative_weights=source, negative_norm=norm), None, *like(s)[:2]
    )
    assert torch.isfinite(w).all()
    total = w.sum(-1) if norm == "per_positive" else w.sum((1, 2))
    torch.testing.assert_close(total, torch.ones_like(total))
    assert (w.diff(dim=-1) >= 0).all()
    uniform = {"own": 0, "smaller": 1, "uniform": 3}[source]
    assert (w[:uniform] == w[0, 0, 0]).all()
    assert all((x[..., -1] > x[..., 0]).all() for x in w[uniform:])


def test_without_evolutionary_improvement_equals_zero_temperatures():
    m, pos, neg = models(), distances()[..., 0], distances(k=4, seed=2)
    off = Weights(positive_weights="uniform", negative_weights="uniform")
    zero = Weights.of(
        MedConfig(
            temperature=0.0,
            positive_weights="recip_dist",
            positive_temperature=0.0,
            negative_weights="smaller",
            distil=0.0,
        )
    )
    for call in (
        lambda w: positives(pos.clone(), m, w)[2],
        lambda w: pairs(neg.clone(), m, w, alone(5), like(neg), value=False)[2],
    ):
        torch.testing.assert_close(call(off), call(zero))


def test_loss_weights_off_equal_w3_zero_and_grow_with_dim():
    dims = (10, 100, 500)
    torch.testing.assert_close(shares("off", 1.0, dims), shares("fixed", 0.0, dims))
    assert (shares("fixed", 1.0, dims).diff() > 0).all()


def test_learned_w3_follows_its_gradient():
    dims, ei = (10, 100, 500), torch.tensor([1.0, 0.6, 0.4])
    w3 = torch.tensor(1.0, dtype=F64, requires_grad=True)
    (torch.exp(w3 * torch.tensor(dims, dtype=F64) / 500) * ei).sum().backward()
    assert step_w3(1.0, ei, dims, 0.1) == pytest.approx(1 - 0.1 * float(w3.grad))
    assert step_w3(1.0, ei, dims, 0.1) < 1.0


def test_one_sub_model_is_the_plain_loss_whatever_the_switches():
    """n = 1 equals direct training: mutual learning and the next smaller model do not exist."""
    m, pos = models((1.0,), (5.0,), (1.0,), (1.0,)), distances(n=1)[..., 0]
    results = [
        positives(pos.clone(), m, Weights(positive_weights=p, ml_down=d, ml_up=d))[2]
        for p, d in itertools.product(("uniform", "recip_dist", "prob"), (0.0, 1.0))
    ]
    plain = -torch.sigmoid(-(5.0 - pos)) / pos.shape[1] * -1.0
    for result in results:
        torch.testing.assert_close(result, plain)


def test_the_full_size_teaches_prefixes_its_distribution():
    """Gradient of the distillation term against autograd on the plain formula."""
    m, weights = models(distil=(0.7, 0.2, 9.0)), Weights()
    pos, neg = distances(b=4, k=1)[..., 0].requires_grad_(), distances(b=4, k=5).requires_grad_()
    scores = torch.cat([pos.unsqueeze(-1), neg], -1)
    log = torch.log_softmax(m.margin - m.scale * scores, -1)
    teacher = log[-1].detach()
    kl = (teacher.exp() * (teacher - log[:-1])).sum(-1).mean(-1)
    truth = (kl * m.share[:-1, 0, 0] * torch.tensor([0.7, 0.2], dtype=F64)).sum()
    truth.backward()
    with torch.no_grad():
        pull = torch.zeros_like(pos)
        near = PositiveSlice(pos.detach(), pull, 4)
        with_kd = pairs(neg.clone(), m, weights, near, like(neg.detach()), value=True)
        without = pairs(neg.clone(), models(), weights, near, like(neg.detach()), value=True)
    torch.testing.assert_close(with_kd[1], truth.detach())
    torch.testing.assert_close(with_kd[2] - without[2], neg.grad)
    torch.testing.assert_close(pull, pos.grad)


@pytest.mark.parametrize(
    "tau", [(0.5, 0.5, 0.5), (1.0, 1.0, 1.0), (2.0, 2.0, 2.0), (2.0, 1.0, 3.0)]
)
@pytest.mark.parametrize("distil", [(0.0, 0.0, 0.0), (0.7, 0.7, 0.7), (0.0, 0.7, 0.3)])
@pytest.mark.parametrize("n", [1, 3])
def test_the_fast_path_equals_the_general_one(tau, distil, n):
    m = models((2.0, 1.5, 1.0)[:n], (4.0, 5.0, 6.0)[:n], (0.5, 1.0, 2.0)[:n], tau[:n], distil)
    neg, near = distances(n=n, k=7, seed=3), distances(n=n)[..., 0]
    masked = torch.tensor([2, 15, 16])
    got = []
    for plain, general in ((False, True), (False, False), (True, False)):
        weights = Weights(plain_powers=plain)
        assert weights.fast
        pull = torch.zeros_like(near)
        here = PositiveSlice(near, pull, 5, masked)
        # only the general path has values
        _, _, grad = pairs(neg.clone(), m, weights, here, like(neg), value=general)
        got.append((grad, pull))
    for grad, pull in got[1:]:
        torch.testing.assert_close(grad, got[0][0])
        torch.testing.assert_close(pull, got[0][1])


def test_scores_far_above_the_margin_need_a_shift_and_have_one():
    """Inner products are distances of any sign; float32 equals float64."""
    near = -200 * distances(seed=5)[..., 0]
    neg = 30 * (distances(k=6, seed=4) - 10)
    weights, got = Weights(), []
    for dtype in (F64, torch.float32):
        m = models(tau=(2.0, 2.0, 2.0), distil=(0.5, 0.5, 0.5), dtype=dtype)
        pull, far = torch.zeros_like(near, dtype=dtype), neg.to(dtype)
        here = PositiveSlice(near.to(dtype), pull, 5)
        _, _, grad = pairs(far, m, weights, here, like(far), value=False)
        got.append((grad.double(), pull.double()))
    assert got[0][0].abs().max() > 0.1
    for one, other in zip(*got, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("farther", [0.0, 500.0])
@pytest.mark.parametrize("plain", [False, True])
def test_the_fast_path_stays_finite_when_everything_is_masked_or_far(plain, farther):
    m, near = (
        models(tau=(2.0, 2.0, 2.0), distil=(1.0, 1.0, 1.0), dtype=torch.float32),
        distances()[..., 0].float() + farther,
    )
    neg = torch.full((3, 5, 4), 500.0)
    weights = Weights(plain_powers=plain)
    masked = torch.arange(8)  # every negative of the first two positives
    pull = torch.zeros_like(near)
    here = PositiveSlice(near, pull, 5, masked)
    _, _, grad = pairs(neg, m, weights, here, like(neg), value=False)
    assert torch.isfinite(grad).all() and torch.isfinite(pull).all()
