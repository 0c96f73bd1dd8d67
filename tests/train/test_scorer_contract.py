"""What holds for every scorer from training to the device; adding one adds it here by itself."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from medapps.crop.crop import Crop, load_crop
from medapps.crop.embedding import Embedding
from medapps.crop.export import Export, export_crop
from medapps.errors import Interrupted
from medapps.evaluate.link_prediction import rank_crop, rank_embedding
from medapps.graph.graph import Graph
from medapps.model.rules import RULES, make_scorer
from medapps.train.batches import sampler_of
from medapps.train.config import MedConfig, paper
from medapps.train.loss.med import SubModels, Weights
from medapps.train.med import MedStep, train_med
from medapps.train.step import Engine, new_model
from tests.baselines.test_gradients import Descent
from tests.contracts import assert_maker
from tests.score_bounds import score_error
from tests.train.conftest import make_graph

CASES = [(name, norm) for name, rule in RULES.items() for norm in rule.NORMS]
DIMS = (4, 8, 16)


def settings(name: str, norm: str, **changes) -> MedConfig:
    given = {"scorer": name, "norm": norm, "dims": DIMS, "batch": 64, "chunk": 32, "threads": 1}
    if make_scorer(name, norm).measure.is_distance:
        given |= {"margin": 1.0}
    lr = 0.3 if name == "pairre" else 0.1
    return MedConfig(**(given | {"negatives": 32, "epochs": 3, "lr": lr} | changes))


@cache
def trained(name: str, norm: str, epochs: int = 3) -> tuple[Graph, Embedding]:
    graph = make_graph()
    return graph, train_med(graph, settings(name, norm, epochs=epochs), seed=3)


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_each_size_equals_the_stand_alone_model_that_a_device_loads(name, norm, tmp_path: Path):
    graph, embedding = trained(name, norm)
    scorer = make_scorer(name, norm)
    head, relation, tail = graph.test.T
    query = scorer.query(
        torch.tensor(embedding.entities[head]), torch.tensor(embedding.relations[relation]), "tail"
    )
    target = torch.tensor(embedding.entities[tail]).unsqueeze(1)
    distance, _ = scorer.aligned(query, target, scorer.bounds(DIMS))
    _, figures = rank_embedding(embedding, graph)
    for i, dim in enumerate(DIMS):
        crop = assert_maker(lambda dim=dim: embedding.crop(dim), tmp_path / str(dim))
        entity, related, _ = RULES[name].REALS
        assert crop.width == dim * entity and crop.relations is not None
        assert crop.relations.shape[1] == dim * related
        spec = embedding.specs[i]
        names = [f"move{r}" for r in relation.tolist()]
        expected = spec.margin - spec.scale * distance[i, :, 0].numpy()
        np.testing.assert_allclose(crop.score(head, names, tail), expected, rtol=1e-4, atol=1e-4)
        _, alone = rank_crop(load_crop(tmp_path / str(dim) / "first"), graph)
        assert alone["dims"][str(dim)] == figures["dims"][str(dim)]


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_ranks_equal_brute_force_over_the_crop(name, norm):
    graph, embedding = trained(name, norm)
    crop, triples = embedding.crop(8), graph.test
    every = np.arange(len(graph.entities))
    known = {tuple(t) for part in (graph.train, graph.valid, triples) for t in part.tolist()}
    reciprocal = []
    for h, r, t in triples.tolist():
        for side in (0, 2):
            asked = np.repeat([[h, r, t]], len(every), 0)
            asked[:, side] = every
            score = crop.score(asked[:, 0], [f"move{r}"] * len(every), asked[:, 2]).astype(float)
            own = score[(h, t)[side // 2]]
            keep = np.array([tuple(x) not in known for x in asked.tolist()])
            rank = 1 + (score[keep] > own + 1e-5).sum()
            tied = (np.abs(score[keep] - own) <= 1e-5).sum()
            reciprocal.append(1 / (rank + tied / 2))
    _, figures = rank_embedding(embedding, graph)
    assert figures["dims"]["8"]["mrr"] == pytest.approx(np.mean(reciprocal), abs=2e-3)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("mode", ["shared", "independent"])
def test_every_scorer_learns(name, mode):
    """Far above chance (.07) on a graph of moves, at the size of eight numbers and more."""
    graph = make_graph()
    config = settings(name, next(iter(RULES[name].NORMS)), epochs=30, negative_mode=mode)
    config = config.changed(negatives=16 if mode == "independent" else 32)
    embedding = train_med(graph, config)
    _, figures = rank_embedding(embedding, graph, split="valid")
    symmetric = name == "distmult"
    assert figures["dims"]["16"]["mrr"] > (0.15 if symmetric else 0.3)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("optimiser", ["adagrad", "lazy_adam"])
def test_a_training_that_was_cut_off_goes_on_bit_for_bit(name, optimiser, tmp_path: Path):
    graph = make_graph()
    config = settings(name, next(iter(RULES[name].NORMS)), optimiser=optimiser)
    whole = train_med(graph, config, seed=5)
    count = 0

    def stop() -> bool:
        nonlocal count
        count += 1
        return count == 9

    with pytest.raises(Interrupted):
        train_med(graph, config, seed=5, checkpoint_dir=tmp_path, stop=stop)
    again = train_med(graph, config, seed=5, checkpoint_dir=tmp_path, resume=True)
    assert np.array_equal(whole.entities, again.entities)
    assert np.array_equal(whole.relations, again.relations)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize(("name", "norm"), CASES)
def test_smaller_numbers_move_scores_within_the_stated_bound(name, norm, dtype, tmp_path: Path):
    graph, embedding = trained(name, norm)
    crop = embedding.crop(16)
    small: Crop = export_crop(crop, tmp_path / "small", Export(dtype=dtype))
    h, r, t = graph.train.T
    names = [f"move{i}" for i in r.tolist()]
    moved = np.abs(small.score(h, names, t) - crop.score(h, names, t))
    assert crop.relations is not None
    bound = score_error(crop.rows(h), crop.relations[r], crop.rows(t), crop.spec, dtype)
    assert (moved <= bound).all()
    assert moved.max() > bound.max() / 1000  # not a bound that everything passes


def test_start_values_are_the_scorers_own():
    graph = make_graph()
    config = settings("rotate", "l2", dims=(400,), epochs=1, lr=1e-9)
    angles = train_med(graph, config).relations
    assert angles.shape[1] == 400
    assert 3.1 < np.abs(angles).max() < np.pi + 1e-3
    assert angles.std() == pytest.approx(np.pi / 3**0.5, rel=0.05)


def test_settings_not_given_are_those_of_the_scorer():
    assert MedConfig(scorer="complex").norm == "dot"
    assert MedConfig(scorer="complex", margin=2.0).margins[-1] == 2.0
    assert paper(scorer="simple").loss.positive_weights == "prob"
    assert MedConfig().norm == "l2" and MedConfig().margins[-1] == 4.0
    for wrong, words in (
        ({"scorer": "nonsense"}, "scorer must be one of transe, rotate"),
        ({"scorer": ["rotate"]}, "valid string"),
        ({"scorer": "complex", "norm": "l2"}, "norm of complex must be one of dot"),
        ({"scorer": "simple", "positive_weights": "recip_dist"}, "inner products: prob"),
    ):
        with pytest.raises(ValueError, match=words):
            MedConfig(**wrong)


def test_the_example_of_the_documentation_is_the_file_that_ships():
    root = Path(__file__).parents[2]
    text = (root / "docs" / "add_a_scorer.md").read_text()
    blocks = [part.partition("```")[0].strip() for part in text.split("```python\n")[1:]]
    assert blocks[1] == (root / "medapps" / "model" / "distmult.py").read_text().strip()
    assert blocks[2] in (root / "medapps" / "model" / "rules.py").read_text()


def test_the_scores_need_neither_torch_nor_configuration():
    code = "import sys, medapps.model.rules\nprint({'torch', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", ["simple", "pairre"])
def test_the_penalty_adds_its_gradient_once_for_every_positive(name):
    graph = make_graph()
    config = settings(name, next(iter(RULES[name].NORMS)))
    batch = sampler_of(graph.train, len(graph.entities), config, 0, None).batch(0, 0)
    moved, models = [], SubModels.of(config, 1.0, torch.device("cpu"))
    for weight in (0.0, 0.3):
        made = new_model(config, len(graph.entities), 6, 0)
        start = made.entities.clone(), made.relations.clone()
        descent = replace(made, entity_optimiser=Descent(), relation_optimiser=Descent())
        with torch.no_grad():
            step = MedStep(Engine(descent), Weights(penalty=weight))
            _, ml = step(batch, models, 1.0, 0, value=True)
        moved.append((start[0] - made.entities, start[1] - made.relations, ml))
    leaves = [x.clone().requires_grad_() for x in start]
    ends = torch.from_numpy(np.concatenate([batch.source, batch.target])).long()
    relation = torch.from_numpy(batch.relation).long()
    truth = (
        0.3
        / 64
        * sum((t[i].abs() ** 3).sum() for t, i in zip(leaves, (ends, relation), strict=True))
    )
    truth.backward()
    for plain, more, leaf in zip(moved[0], moved[1], leaves, strict=False):
        torch.testing.assert_close(more - plain, leaf.grad, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(moved[1][2] - moved[0][2], truth.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", RULES)
def test_relations_start_as_the_scorer_says(name):
    config = settings(name, next(iter(RULES[name].NORMS)))
    start = new_model(config, 5, 400, 0).relations
    assert abs(float((start > 0).float().mean()) - 0.5) < 0.05
    sizes = start.abs()
    if RULES[name].RELATIONS == "signs":
        torch.testing.assert_close(sizes, torch.full_like(sizes, float(sizes[0, 0])))
    else:
        torch.testing.assert_close(sizes.mean() / sizes.max(), torch.tensor(0.5), atol=0.02, rtol=0)
    length = RULES[name].lengths(config.optimiser.init_norm, config.dims[-1], config.norm)[1]
    assert abs(float(start.norm(dim=1).mean()) / length - 1) < 0.05
