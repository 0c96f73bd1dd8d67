"""The gradients that a whole step hands to the optimisers, against autograd on the plain loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import softplus

from medapps.graph.graph import KnownTriples
from medapps.train.batches import sampler_of
from medapps.train.config import MedConfig
from medapps.train.loss.med import SubModels, Weights
from medapps.train.med import MedStep
from medapps.train.step import Engine, new_model

CPU = torch.device("cpu")


class Kept:
    """Stands where an optimiser stands and keeps the gradient as a dense table."""

    def step(self, table, ids, grad, lr, count):
        self.grad = torch.zeros_like(table).index_copy_(0, ids.long(), grad)


def naive_loss(entities, relations, batch, config: MedConfig, one_way) -> torch.Tensor:
    """Every prefix by itself, every positive in a Python loop."""
    total = torch.zeros(())
    facts = config.dims, config.scales, config.margins, config.temperatures
    for dim, scale, margin, w2 in zip(*facts, strict=True):

        def score(query, entity, scale=scale, margin=margin):
            return margin - scale * (query - entity).square().sum(-1).add(1e-12).sqrt()

        for chunk in batch.chunks:
            masked = set(chunk.masked.tolist())
            for row, b in enumerate(range(chunk.start, chunk.stop)):
                source, relation, target = (
                    int(x[b]) for x in (batch.source, batch.relation, batch.target)
                )
                sign = 1 if chunk.side == "tail" else -1
                query = entities[source, :dim] + sign * relations[relation, :dim]
                total = total + softplus(-score(query, entities[target, :dim]))
                drawn = chunk.negatives if chunk.negatives.ndim == 1 else chunk.negatives[row]
                kept = [k for k in range(len(drawn)) if row * len(drawn) + k not in masked]
                s = score(query, entities[torch.as_tensor(drawn[kept]).long(), :dim])
                weight = torch.softmax(w2 * s.detach(), 0)
                total = total + (weight * softplus(s)).sum()
                if one_way[relation] and source != target:
                    s = score(query, entities[source, :dim])
                    total = total + config.loss.own_answer * softplus(s)
    return total / len(batch.source)


@pytest.mark.parametrize("mode", ["shared", "independent"])
@pytest.mark.parametrize("own_answer", [0.0, 0.7])
def test_a_step_moves_by_the_gradient_of_the_plain_loss(graph, mode, own_answer):
    config = MedConfig(
        dims=(2, 5, 9),
        batch=24,
        chunk=12,
        negatives=10,
        negative_mode=mode,
        margin=1.5,
        temperature=(0.5, 1.0, 3.0),
        distil=0.0,
        own_answer=own_answer,
    )
    entities, relations = len(graph.entities), len(graph.relations)
    known = KnownTriples.of(graph.train, entities)
    batch = sampler_of(graph.train, entities, config, 0, known).batch(0, 1)
    made = new_model(config, entities, relations, 0)
    kept = Kept(), Kept()
    e, r = (x.clone().requires_grad_() for x in (made.entities, made.relations))
    naive_loss(e, r, batch, config, [True] * relations).backward()  # no move leads back
    kept_model = replace(made, entity_optimiser=kept[0], relation_optimiser=kept[1])
    step = MedStep(Engine(kept_model), Weights.of(config, bounded=True))
    with torch.no_grad():
        step(batch, SubModels.of(config, 1.0, CPU), lr=1.0, count=0, value=False)
    torch.testing.assert_close(kept[0].grad, e.grad, atol=2e-5, rtol=2e-3)
    torch.testing.assert_close(kept[1].grad, r.grad, atol=2e-5, rtol=2e-3)
