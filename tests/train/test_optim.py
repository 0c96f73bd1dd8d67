"""Optimisers against torch's own and against the formula, row by row."""

from __future__ import annotations

import pytest
import torch

from medapps.train.tables import blank, fill, group, make_optimiser, summed


def table(rows=20, width=6, seed=0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def steps(seed=1, count=5):
    """Touched ids and their gradients."""
    g = torch.Generator().manual_seed(seed)
    for _ in range(count):
        ids = torch.randperm(20, generator=g)[:7]
        yield ids, torch.randn(7, 6, generator=g)


def test_lazy_adam_equals_sparse_adam_of_torch():
    mine, weight = table(), torch.nn.Parameter(table())
    optimiser, reference = make_optimiser("lazy_adam", mine), torch.optim.SparseAdam([weight], 0.05)
    for count, (ids, grad) in enumerate(steps()):
        optimiser.step(mine, ids, grad.clone(), 0.05, count)
        weight.grad = torch.sparse_coo_tensor(ids[None], grad, weight.shape, check_invariants=True)
        reference.step()
    torch.testing.assert_close(mine, weight.detach())


def test_row_wise_adagrad_equals_its_formula_and_leaves_other_rows_alone():
    mine, truth = table(), table().double()
    optimiser, square = make_optimiser("adagrad", mine), torch.zeros(20, dtype=torch.float64)
    touched = torch.zeros(20, dtype=torch.bool)
    for count, (ids, grad) in enumerate(steps(count=3)):
        optimiser.step(mine, ids, grad.clone(), 0.1, count)
        for i, g in zip(ids.tolist(), grad.double(), strict=True):
            square[i] += (g * g).mean()
            truth[i] -= 0.1 * g / square[i].sqrt()
        touched[ids] = True
    torch.testing.assert_close(mine.double(), truth, rtol=1e-5, atol=1e-6)
    assert (~touched).any() and torch.equal(mine[~touched], table()[~touched])


def test_adagrad_keeps_one_number_per_row_and_segment():
    bounds, mine = (0, 2, 6), table()
    apart = [table()[:, :2].clone(), table()[:, 2:].clone()]
    whole = make_optimiser("adagrad", mine, bounds)
    parts = [make_optimiser("adagrad", part) for part in apart]
    for count, (ids, grad) in enumerate(steps()):
        whole.step(mine, ids, grad.clone(), 0.1, count)
        for part, optimiser, columns in zip(apart, parts, (slice(0, 2), slice(2, 6)), strict=True):
            optimiser.step(part, ids, grad[:, columns].clone(), 0.1, count)
    torch.testing.assert_close(mine, torch.cat(apart, 1))


@pytest.mark.parametrize("name", ["adagrad", "lazy_adam"])
def test_small_sizes_take_longer_steps_by_the_power_of_their_width(name):
    bounds, mine = (0, 2, 6), table()
    apart = [table()[:, :2].clone(), table()[:, 2:].clone()]
    whole = make_optimiser(name, mine, bounds, rate_power=1.0)
    parts = [make_optimiser(name, part) for part in apart]
    for count, (ids, grad) in enumerate(steps()):
        whole.step(mine, ids, grad.clone(), 0.1, count)
        parts[0].step(apart[0], ids, grad[:, :2].clone(), 0.3, count)  # 0.1 (6 / 2)^1
        parts[1].step(apart[1], ids, grad[:, 2:].clone(), 0.1, count)
    torch.testing.assert_close(mine, torch.cat(apart, 1))


@pytest.mark.parametrize("name", ["adagrad", "lazy_adam"])
def test_rows_that_keep_their_length_point_where_a_plain_step_would_take_them(name):
    mine = torch.nn.functional.normalize(table(), dim=1).mul_(2.0)
    optimiser, reference = (make_optimiser(name, mine, length=x) for x in (2.0, None))
    for count, (ids, grad) in enumerate(steps()):
        plain = mine.clone()
        reference.step(plain, ids, grad.clone(), 0.3, count)
        optimiser.step(mine, ids, grad.clone(), 0.3, count)
        truth = 2.0 * plain[ids] / plain[ids].norm(dim=1, keepdim=True)
        torch.testing.assert_close(mine[ids], truth)


@pytest.mark.parametrize("name", ["adagrad", "lazy_adam"])
def test_rounded_rows_keep_their_length_over_many_steps(name):
    """Rounding errors of bfloat16, at most 2^-7 of a number, do not add up."""
    mine = torch.nn.functional.normalize(table().float(), dim=1).mul_(2.0).to(torch.bfloat16)
    ids, generator = torch.arange(len(mine)), torch.Generator().manual_seed(1)
    optimiser = make_optimiser(name, mine, length=2.0)
    for count in range(200):
        grad = torch.randn(mine.shape, generator=generator)
        optimiser.step(mine, ids, grad, 0.1, count)
    lengths = mine.float().norm(dim=1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, 2.0), rtol=2**-7, atol=0)


@pytest.mark.parametrize("name", ["adagrad", "lazy_adam"])
def test_a_rate_multiplies_every_step(name):
    mine, other = table(), table()
    slow, plain = make_optimiser(name, mine, rate=0.25), make_optimiser(name, other)
    for count, (ids, grad) in enumerate(steps()):
        slow.step(mine, ids, grad.clone(), 0.4, count)
        plain.step(other, ids, grad.clone(), 0.1, count)
    torch.testing.assert_close(mine, other)


def test_row_wise_adagrad_does_not_see_rotations():
    turn = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(3)))[0]
    plain, turned = table(), table() @ turn
    a, b = make_optimiser("adagrad", plain), make_optimiser("adagrad", turned)
    for count, (ids, grad) in enumerate(steps()):
        a.step(plain, ids, grad.clone(), 0.1, count)
        b.step(turned, ids, grad @ turn, 0.1, count)
    torch.testing.assert_close(plain @ turn, turned, rtol=1e-4, atol=1e-5)


def test_duplicate_rows_are_summed():
    ids = torch.tensor([5, 2, 5, 9, 2, 5], dtype=torch.int32)
    rows = table(6, 4, seed=2)
    groups = group(ids)
    truth = torch.zeros(10, 4).index_add_(0, ids.long(), rows)
    assert groups.ids.tolist() == [2, 5, 9]
    torch.testing.assert_close(summed(rows, groups), truth[[2, 5, 9]])


def test_large_tables_start_like_small_ones():
    cpu = torch.device("cpu")
    large = blank((5_000_000, 4), cpu)  # beyond the size from which large pages are asked for
    assert large.shape == (5_000_000, 4) and not large[::100_000].any()
    first = fill(blank((10, 8), cpu), 3, 0, 1.0)
    assert torch.equal(first, fill(blank((5000, 8), cpu), 3, 0, 1.0)[:10])
