"""Tables that are not finite: ranked last, never kept as best, never saved."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from medapps.cli.main import app
from medapps.crop.quantize import broken_row
from medapps.errors import MedappsError
from medapps.evaluate.filtered_ranking import Tables, rank_tables
from medapps.evaluate.link_prediction import rank_metrics
from medapps.model.rule import ScoreSpec
from medapps.model.rules import RULES
from medapps.train.config import MedConfig
from medapps.train.loop import Diverged
from medapps.train.med import train_med
from medapps.train.tables import Optimiser, working_file
from tests.train.test_rank import embedding_of, known_set

DIMS = (2, 4)


def drawn(graph, scorer: str) -> tuple[np.ndarray, np.ndarray, tuple[ScoreSpec, ...]]:
    rule = RULES[scorer]
    rng = np.random.default_rng(0)
    entity, relation, _ = rule.REALS
    shapes = (len(graph.entities), 4 * entity), (len(graph.relations), 4 * relation)
    tables = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    return *tables, (ScoreSpec(scorer, next(iter(rule.NORMS)), 1.0, 3.0),) * 2


def worst_for_nan(e, r, specs, triples, known, scorer) -> np.ndarray:
    """Ranks (dims, 2, triples) from scores of one corruption at a time, NaN as -inf; a true entity
    with -inf comes after everything.
    """
    entity, relation, _ = RULES[scorer].REALS
    out = np.empty((len(DIMS), 2, len(triples)))
    everything = np.arange(len(e))
    e, r = e.astype(np.float64), r.astype(np.float64)
    for i, (dim, spec) in enumerate(zip(DIMS, specs, strict=True)):
        a, b = dim * entity, dim * relation
        for k, (h, rel, t) in enumerate(triples.tolist()):
            for side, true in enumerate((h, t)):
                heads, tails = (everything, [t]) if side == 0 else ([h], everything)
                with np.errstate(all="ignore"):
                    scores = RULES[scorer].score(e[heads, :a], r[[rel], :b], e[tails, :a], spec)
                scores = np.where(np.isfinite(scores), scores, -np.inf)
                others = [
                    x != true and ((x, rel, t) if side == 0 else (h, rel, x)) not in known
                    for x in everything.tolist()
                ]
                if np.isneginf(scores[true]):
                    out[i, side, k] = 1 + sum(others)
                else:
                    out[i, side, k] = 1 + (scores[others] > scores[true]).sum()
    return out


@pytest.mark.parametrize("scorer", list(RULES))
def test_scores_that_are_no_numbers_rank_last(graph, scorer):
    e, r, specs = drawn(graph, scorer)
    e[5] = np.nan  # in every prefix
    e[9, -1] = np.nan  # in the larger one
    e[11, 0] = np.inf
    r[3] = np.nan
    truth = worst_for_nan(e, r, specs, graph.test, known_set(graph), scorer)
    for memory in (1, 2**23):
        got = rank_tables(Tables(e, r, DIMS, specs), graph.test, graph.known, memory=memory)
        np.testing.assert_array_equal(got.ranks, truth)


@pytest.mark.parametrize("broken", [np.nan, np.inf, 1e38])
@pytest.mark.parametrize("scorer", list(RULES))
def test_a_table_without_numbers_has_the_worst_metrics(graph, scorer, broken):
    e, r, specs = drawn(graph, scorer)
    if broken == 1e38 and RULES[scorer].NORMS[specs[0].norm].scale_free:
        pytest.skip("knows no lengths")
    ranks = rank_tables(Tables(e * 0 + broken, r, DIMS, specs), graph.test, None).ranks
    assert rank_metrics(ranks[-1])["mrr"] < 2 / len(graph.entities)
    some = rank_tables(
        Tables(e * 0 + np.nan, r, DIMS, specs), graph.test, None, candidates=30
    ).ranks
    assert some.min() >= 30


def test_the_first_broken_row_is_found_in_any_kind_of_table(tmp_path, monkeypatch):
    monkeypatch.setattr("medapps.crop.quantize.PIECE", 64)
    plain = np.ones((50, 4), np.float32)
    mapped = working_file(tmp_path, (50, 4), "float32")
    bits = torch.ones(50, 4, dtype=torch.bfloat16)
    halves = bits.view(torch.int16).numpy().view(np.uint16)
    for table in (plain, mapped, halves):
        assert broken_row(table) is None
    plain[37, 2], mapped[41, 0], bits[12, 3] = np.nan, -np.inf, np.inf
    assert [broken_row(table) for table in (plain, mapped, halves)] == [37, 41, 12]


@pytest.mark.parametrize("table", ["entities", "relations"])
def test_a_broken_embedding_is_not_saved(graph, tmp_path, table):
    embedding = embedding_of(graph)
    values = getattr(embedding, table).copy()
    values[3, 1] = np.nan
    with pytest.raises(MedappsError, match=r"(entity 3|relation 'move3').*not finite"):
        replace(embedding, **{table: values}).save(tmp_path / "e")
    assert not (tmp_path / "e").exists()


CONFIG = MedConfig(dims=(4, 8), epochs=3, every=1, batch=64, chunk=32, negatives=16, threads=1)


@pytest.mark.parametrize("table", ["fp32", "bf16", "mmap"])
@pytest.mark.parametrize("patience", [None, 2])
def test_a_training_that_diverges_between_two_looks_at_the_loss_ends(
    graph, monkeypatch, tmp_path, table, patience
):
    """One number becomes NaN in the last step of the first epoch."""
    steps = -(-len(graph.train) // CONFIG.sampling.batch)
    step = Optimiser.step

    def overflow(self, table, ids, grad, lr, count):
        step(self, table, ids, grad, lr, count)
        if count == steps - 1 and len(table) == len(graph.entities):
            table[7, 0] = torch.nan

    monkeypatch.setattr(Optimiser, "step", overflow)
    config = CONFIG.changed(table=table, patience=patience)
    with pytest.raises(Diverged, match=r"not finite in epoch 1.*Lower the learning rate"):
        train_med(graph, config, checkpoint_dir=tmp_path)
    assert not (tmp_path / "best").exists()


def test_a_learning_rate_that_is_too_high_ends_the_command_with_2(tmp_path, tiny_dataset):
    words = ["train", "--kg", str(tiny_dataset), "--dims", "10,100", "--epochs", "5"]
    words += ["--scorer", "complex", "--set", "train.lr=1000", "--no-track", "--json"]
    result = CliRunner().invoke(app, [*words, "--workspace", str(tmp_path)])
    assert result.exit_code == 2, result.output
    assert "Lower the learning rate" in json.loads(result.stdout)["error"]
    assert not (tmp_path / "embeddings").exists()
