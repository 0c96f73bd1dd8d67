"""The network against a plain one, its training, and full ranking against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from medapps.errors import MedappsError
from medapps.evaluate.metrics import rank_metrics
from medapps.recommend.config import NcfConfig
from medapps.recommend.ncf_paper.fit import train_ncf
from medapps.recommend.ncf_paper.known_pairs import KnownPairs
from medapps.recommend.ncf_paper.network import NeuMF, new_model
from medapps.recommend.ncf_paper.ranking import full_ranks, sampled_ranks, score_blocks

USERS, ITEMS, DIM = 40, 5000, 6  # more items than one tile


class PlainNeuMF(nn.Module):
    """NeuMF as it is usually written: embeddings, concatenation, one Linear after the other."""

    def __init__(self, model: NeuMF) -> None:
        super().__init__()
        self.source = model
        parts = [model.user_part, model.item_part]
        parts += [model.service_part] if model.service_dim else []
        first = torch.cat(parts).detach()
        self.first = nn.Linear(*first.shape)
        self.first.weight.data = first.T
        self.first.bias.data = model.first_bias.detach()
        self.out = nn.Linear(len(model.out), 1)
        self.out.weight.data = model.out.detach()[None]
        self.out.bias.data = model.out_bias.detach()[None]

    def forward(self, user: Tensor, item: Tensor, service: Tensor | None) -> Tensor:
        model = self.source
        p, q = model.users[user], model.items[item]
        inputs = [p[:, : model.mlp], q[:, : model.mlp]]
        if service is not None:
            inputs.append(service)
        hidden = torch.relu(self.first(torch.cat(inputs, 1)))
        for layer in model.tower:
            hidden = torch.relu(layer(hidden))
        product = p[:, model.mlp :] * q[:, model.mlp :]
        return self.out(torch.cat([product, hidden], 1))[:, 0]


def _model(service: int, **options: object) -> NeuMF:
    model = new_model(USERS, ITEMS, service, NcfConfig(**options), seed=3)
    with torch.no_grad():  # as large as trained ones, so that every part counts
        model.users.mul_(60)
        model.items.mul_(60)
    return model


@pytest.mark.parametrize("service", [0, DIM])
@torch.no_grad()
def test_split_first_layer_equals_the_plain_network(service: int) -> None:
    model = _model(service)
    vectors = torch.randn(USERS, service, generator=torch.Generator().manual_seed(0))
    given = vectors if service else None
    user = torch.arange(USERS).repeat_interleave(7)
    item = torch.randint(0, ITEMS, (len(user),), generator=torch.Generator().manual_seed(1))
    plain = PlainNeuMF(model)
    expected = plain(user, item, vectors[user] if service else None)
    ours = model(torch.arange(USERS), item.view(USERS, 7), given)
    torch.testing.assert_close(ours.reshape(-1), expected, rtol=1e-5, atol=1e-5)
    everything = torch.cat([scores for _, scores in score_blocks(model, np.arange(USERS), given)])
    torch.testing.assert_close(
        everything.gather(1, item.view(USERS, 7)), ours, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("mode", ["gmf", "mlp", "neumf"])
@torch.no_grad()
def test_full_ranks_equal_brute_force(mode: str) -> None:
    rng = np.random.default_rng(0)
    model = new_model(USERS, 60, DIM, NcfConfig(mode=mode), seed=0)
    model.users.mul_(100), model.items.mul_(100)
    vectors = torch.randn(USERS, DIM, generator=torch.Generator().manual_seed(0))
    seen = KnownPairs.build(rng.integers(0, USERS, 500), rng.integers(0, 60, 500), USERS, 60)
    target = np.array([rng.choice(np.flatnonzero(~row)) for row in seen.mask(np.arange(USERS))])
    pairs = np.stack([np.arange(USERS), target], 1)
    unknown = np.arange(USERS) % 5 == 0
    ranks, lists = full_ranks(model, pairs, seen, vectors, unknown, top=5)
    for user in range(USERS):
        free = np.flatnonzero(~seen.mask(np.array([user]))[0])
        who = USERS if unknown[user] else user
        every = model(torch.tensor([who]), torch.arange(60)[None], vectors[user : user + 1])[0]
        own, others = every[target[user]], every[np.setdiff1d(free, target[user])]
        clearly = int((others > own + 1e-6).sum())
        nearly = int((others > own - 1e-6).sum())
        assert 1 + clearly <= ranks[user] <= 1 + nearly
        assert not set(lists[user].tolist()) - set(free.tolist())
        best = every[free].sort(descending=True).values[:5]
        torch.testing.assert_close(every[lists[user].astype(int)], best, rtol=1e-5, atol=1e-6)


def test_equal_scores_share_the_middle_rank() -> None:
    model = new_model(3, 11, 0, NcfConfig(), seed=0)
    with torch.no_grad():
        for value in model.parameters():
            value.zero_()
    nothing = KnownPairs.build(np.empty(0, int), np.empty(0, int), 3, 11)
    ranks, _ = full_ranks(model, np.array([[0, 4], [2, 9]]), nothing, None)
    assert ranks.tolist() == [6, 6]


def test_an_untrained_network_hits_ten_of_a_hundred() -> None:
    model = new_model(4000, 500, 0, NcfConfig(), seed=0)
    rng = np.random.default_rng(0)
    pairs = np.stack([np.arange(4000), rng.integers(0, 500, 4000)], 1)
    others = (pairs[:, 1:] + rng.permuted(np.tile(np.arange(1, 500), (4000, 1)), axis=1)) % 500
    hits = rank_metrics(sampled_ranks(model, pairs, others[:, :99], None))["hit_at_10"]
    assert hits.mean() == pytest.approx(0.1, abs=0.02)


def test_a_duplicate_of_the_positive_is_not_a_rival() -> None:
    model = _model(0)
    pairs = np.array([[0, 5]])
    with_copy = sampled_ranks(model, pairs, np.array([[5, 1, 2]]), None)
    assert with_copy == sampled_ranks(model, pairs, np.array([[1, 2]]), None)


def _checkerboard(users: int = 60, items: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Even users take even items, odd users odd ones, but each lacks one: the right answer."""
    pairs = [(u, i) for u in range(users) for i in range(items) if u % 2 == i % 2]
    wanted = np.array([[u, 2 * (u // 2 % (items // 2)) + u % 2] for u in range(users)])
    held = {tuple(row) for row in wanted.tolist()}
    return np.array([pair for pair in pairs if pair not in held]), wanted


@pytest.mark.parametrize("mode", ["gmf", "neumf"])
def test_training_finds_the_withheld_item_of_a_checkerboard(mode: str) -> None:
    train, wanted = _checkerboard()
    known = KnownPairs.build(train[:, 0], train[:, 1], 60, 40)
    config = NcfConfig(mode=mode, epochs=40, learning_rate=0.01)
    fit = train_ncf(train[:, 0], train[:, 1], known, None, config, seed=0)
    ranks, _ = full_ranks(fit.model, wanted, known, None)
    assert (ranks <= 1).mean() > 0.95


@pytest.mark.parametrize("mode", ["mlp", "neumf"])
def test_a_service_vector_serves_users_that_were_never_trained_on(mode: str) -> None:
    train, wanted = _checkerboard()
    cold = np.arange(60) >= 48
    warm = train[~cold[train[:, 0]]]
    known = KnownPairs.build(warm[:, 0], warm[:, 1], 60, 40)
    parity = np.where(np.arange(60) % 2, 1.0, -1.0)[:, None].astype(np.float32)
    config = NcfConfig(mode=mode, epochs=40, learning_rate=0.01, user_dropout=0.3)
    fit = train_ncf(warm[:, 0], warm[:, 1], known, parity, config, seed=0)
    test = wanted[cold]
    good, _ = full_ranks(fit.model, test, known, fit.service, cold)
    assert (good <= 20).all()  # the twenty items of the right colour
    blind, _ = full_ranks(fit.model, test, known, -fit.service, cold)
    assert (blind > 20).all()


def test_training_is_repeatable_and_depends_on_the_seed() -> None:
    train, _ = _checkerboard(20, 10)
    known = KnownPairs.build(train[:, 0], train[:, 1], 20, 10)
    config = NcfConfig(epochs=2)
    one, two, other = (
        train_ncf(train[:, 0], train[:, 1], known, None, config, seed) for seed in (1, 1, 2)
    )
    assert torch.equal(one.model.users, two.model.users)
    assert not torch.equal(one.model.users, other.model.users)


def test_the_best_epoch_is_kept_and_patience_ends_training() -> None:
    train, _ = _checkerboard(20, 10)
    known = KnownPairs.build(train[:, 0], train[:, 1], 20, 10)
    values = iter([0.1, 0.5, 0.4, 0.3, 0.2, 0.1])
    kept: list[Tensor] = []

    def validate(model: NeuMF, _service: Tensor | None) -> float:
        kept.append(model.users.detach().clone())
        return next(values)

    config = NcfConfig(epochs=6, patience=3)
    fit = train_ncf(train[:, 0], train[:, 1], known, None, config, 0, validate)
    assert fit.epoch == 2 and len(fit.history) == 5
    assert torch.equal(fit.model.users, kept[1])


def test_a_diverging_training_is_said() -> None:
    train, _ = _checkerboard(20, 10)
    known = KnownPairs.build(train[:, 0], train[:, 1], 20, 10)
    service = np.full((20, 3), np.float32(3e38))
    with pytest.raises(MedappsError, match=r"diverged.*learning_rate"):
        train_ncf(train[:, 0], train[:, 1], known, service, NcfConfig(epochs=1), 0)
