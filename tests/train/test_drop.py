"""Dropped coordinates: who loses which, and the step against autograd on plain scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import softplus

from medapps.model.rule import BILINEAR, ScoreSpec
from medapps.model.rules import RULES
from medapps.train.batches import draw_kept, sampler_of
from medapps.train.config import MedConfig
from medapps.train.loss.med import SubModels, Weights
from medapps.train.med import MedStep
from medapps.train.order import stream
from medapps.train.step import Engine, new_model
from tests.train.test_step import CPU, Kept

CONFIG = MedConfig(
    scorer="pairre", dims=(2, 5, 9), drop=(0.0, 0.3, 0.5), batch=24, chunk=12, negatives=10,
    filter_known=False, margin=1.5, temperature=2.0, distil=0.0, scale_power=0.0,
)  # fmt: skip


def distmult(h, r, t, dim, scale):
    return scale * (h * r * t)[:dim].sum()


def pairre(h, r, t, dim, scale):
    h, t = (x[:dim] / (x[:dim].square().sum() + 1e-12).sqrt() for x in (h, t))
    head, tail = r[0 : 2 * dim : 2], r[1 : 2 * dim : 2]
    return 1.5 - scale * (h * head - t * tail).square().sum().add(1e-12).sqrt()


def naive_loss(score, reals, entities, relations, batch, config) -> torch.Tensor:
    """Triple by triple; every triple of a positive has the relation without what it drops."""
    total = torch.zeros(())
    for dim, scale in zip(config.dims, config.scales, strict=True):
        for chunk in batch.chunks:
            for b in range(chunk.start, chunk.stop):
                factor = torch.from_numpy(batch.kept[b]).repeat_interleave(reals)
                relation = relations[int(batch.relation[b])] * factor
                given, scores = entities[int(batch.source[b])], []
                for other in [batch.target[b], *chunk.negatives]:
                    ends = (given, entities[int(other)])
                    h, t = ends if chunk.side == "tail" else ends[::-1]
                    scores.append(score(h, relation, t, dim, scale))
                taken = np.flatnonzero(chunk.negatives != batch.target[b]) + 1
                s = torch.stack(scores)
                weight = torch.softmax(2.0 * s[taken].detach(), 0)
                total = total + softplus(-s[0]) + (weight * softplus(s[taken])).sum()
    return total / len(batch.source)


@pytest.mark.parametrize(
    ("name", "score", "reals"), [("pairre", pairre, 2), ("distmult", distmult, 1)]
)
def test_a_step_moves_by_the_gradient_without_the_dropped_coordinates(graph, name, score, reals):
    margin = 1.5 if name == "pairre" else 0.0
    norm = "l2" if name == "pairre" else "dot"
    config = CONFIG.changed(scorer=name, margin=margin, norm=norm)
    entities, relations = len(graph.entities), len(graph.relations)
    batch = sampler_of(graph.train, entities, config, 0, None).batch(0, 1)
    made = new_model(config, entities, relations, 0)
    made.relations.normal_(generator=torch.Generator().manual_seed(0))
    e, r = (x.clone().requires_grad_() for x in (made.entities, made.relations))
    naive_loss(score, reals, e, r, batch, config).backward()
    kept = Kept(), Kept()
    weights = Weights.of(config, bounded=made.scorer.measure.is_distance)
    model = replace(made, entity_optimiser=kept[0], relation_optimiser=kept[1])
    with torch.no_grad():
        step = MedStep(Engine(model), weights)
        step(batch, SubModels.of(config, 1.0, CPU), lr=1.0, count=0, value=False)
    torch.testing.assert_close(kept[0].grad, e.grad, atol=2e-5, rtol=2e-3)
    torch.testing.assert_close(kept[1].grad, r.grad, atol=2e-5, rtol=2e-3)


@pytest.mark.parametrize(
    "name", [name for name, rule in RULES.items() if BILINEAR in rule.NORMS.values()]
)
def test_a_zero_in_the_relation_leaves_the_coordinate_out(name):
    rule, spec = RULES[name], ScoreSpec(scorer=name, norm="dot")
    (of_entity, of_relation, _), rng = rule.REALS, np.random.default_rng(0)
    rows = [rng.standard_normal((1, 5 * n)) for n in (of_entity, of_relation, of_entity)]
    head, relation, tail = (x.astype(np.float32) for x in rows)
    relation[:, 2 * of_relation : 3 * of_relation] = 0
    before = rule.score(head, relation, tail, spec)
    head[:, 2 * of_entity : 3 * of_entity] += 1
    tail[:, 2 * of_entity : 3 * of_entity] -= 2
    np.testing.assert_allclose(rule.score(head, relation, tail, spec), before, rtol=1e-5)


def test_each_size_drops_its_share_of_what_it_adds():
    kept = draw_kept(stream(0, 0), 20_000, CONFIG)
    gone = (kept == 0).mean(0)
    assert (gone[:2] == 0).all()
    np.testing.assert_allclose(gone[2:5], 0.3, atol=0.02)
    np.testing.assert_allclose(gone[5:], 0.5, atol=0.02)
    np.testing.assert_allclose(np.square(kept).mean(0), 1.0, atol=0.05)  # squares keep their sum


def test_products_keep_their_sum():
    config = MedConfig(scorer="distmult", dims=(4,), drop=0.4)
    np.testing.assert_allclose(draw_kept(stream(0, 0), 20_000, config).mean(0), 1.0, atol=0.05)


def test_parts_of_a_batch_drop_what_the_whole_drops(graph):
    sampler = sampler_of(graph.train, len(graph.entities), CONFIG, 7, None)
    make = lambda part: replace(sampler, part=part)  # noqa: E731
    whole = make((0, 1)).batch(1, 2).kept
    parts = [make((i, 3)).batch(1, 2).kept for i in range(3)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert not np.array_equal(make((0, 1)).batch(1, 3).kept, whole)


@pytest.mark.parametrize("name", ["transe", "rotate"])
def test_scorers_whose_relations_move_points_cannot_drop(name):
    with pytest.raises(ValueError, match=f"drop needs pairre or simple or .*, not {name}"):
        MedConfig(scorer=name, drop=0.1)
