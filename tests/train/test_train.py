"""Training as a whole: it learns, stops, is deterministic, and its switches do what they say."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from medapps.errors import Interrupted, MedappsError
from medapps.evaluate.link_prediction import rank_embedding
from medapps.tracking import Run
from medapps.train.config import MedConfig, mrl, paper
from medapps.train.med import train_med
from medapps.train.memory import peak_rss_bytes
from medapps.train.order import split_validation
from medapps.train.session import Progress
from tests.train.conftest import make_graph

SMALL = {
    "dims": (4, 8, 16),
    "epochs": 8,
    "batch": 64,
    "chunk": 32,
    "negatives": 16,
    "margin": 1.0,
    "lr": 0.1,
    "scale_power": 0.5,
    "distil": 1.0,
    "temperature": 0.5,
    "threads": 1,
}


def small(**changes) -> MedConfig:
    return MedConfig(**(SMALL | changes))


def mrr(graph, config, seed=0) -> list[float]:
    _, result = rank_embedding(train_med(graph, config, seed=seed), graph)
    return [result["dims"][str(d)]["mrr"] for d in config.dims]


def test_every_prefix_learns_the_graph(graph):
    before = mrr(graph, small(epochs=1, lr=1e-6))
    after = mrr(graph, small(epochs=40))
    assert max(before) < 0.15
    assert min(after) > 0.5, after


@pytest.mark.parametrize(
    "changes",
    [
        {"optimiser": "lazy_adam", "lr": 0.05},
        {"negative_mode": "independent"},
        {"filter_known": False},
        {"ml_down": 0.1, "ml_up": 0.1, "positive_weights": "recip_dist", "dlw": "fixed"},
        {"own_answer": 0.3},
        {"negative_norm": "batch", "negative_weights": "smaller"},
    ],
    ids=lambda c: "-".join(f"{k}={v}" for k, v in c.items()),
)
def test_every_switch_changes_the_tables_and_trains_above_chance(graph, changes):
    config = small(epochs=30, **changes)
    switched = train_med(graph, config)
    _, result = rank_embedding(switched, graph)
    assert min(result["dims"][str(d)]["mrr"] for d in config.dims) > 0.2
    usual = train_med(graph, small(epochs=1))
    short = train_med(graph, small(epochs=1, **changes))
    assert np.abs(short.entities - usual.entities).max() > 1e-4


def test_equal_seeds_give_equal_tables_and_other_seeds_do_not(graph, tmp_path):
    one, two, other = (train_med(graph, small(), seed=s) for s in (3, 3, 4))
    assert np.array_equal(one.entities, two.entities)
    assert np.array_equal(one.relations, two.relations)
    assert not np.array_equal(one.entities, other.entities)
    digests = [e.save(tmp_path / str(i)).manifest.digest for i, e in enumerate((one, two))]
    assert digests[0] == digests[1]


def test_ablations_meet_at_the_control(graph):
    """Mutual learning off, uniform weights and no loss weights are the MRL control."""
    control = train_med(graph, mrl(**SMALL | {"epochs": 2, "distil": 0.0}))
    same = train_med(
        graph,
        small(
            epochs=2,
            ml_down=0.0,
            ml_up=0.0,
            positive_weights="recip_dist",
            positive_temperature=0.0,
            negative_weights="own",
            temperature=0.0,
            dlw="fixed",
            w3=0.0,
            distil=0.0,
        ),
    )
    np.testing.assert_allclose(control.entities, same.entities, rtol=1e-3, atol=1e-4)
    full = train_med(graph, small(ml_down=1.0, ml_up=1.0, dlw="fixed", distil=0.0))
    assert np.abs(full.entities - control.entities).max() > 1e-2


def test_one_dim_equals_direct_training_whatever_the_sub_model_switches(graph):
    plain = train_med(graph, small(dims=(16,)))
    switched = train_med(graph, small(dims=(16,), ml_down=1.0, dlw="fixed", scale_power=1.0))
    np.testing.assert_allclose(plain.entities, switched.entities, rtol=1e-4, atol=1e-5)


def test_the_paper_recipe_learns_the_graph(graph):
    given = {"dims": (4, 8, 16), "margin": 1.0, "threads": 1, "lr": 0.05}
    config = paper(**given, batch=64, chunk=64, negatives=16, epochs=40)
    assert config.loss.negative_norm == "batch" and config.loss.dlw == "fixed"
    assert min(mrr(graph, config)) > 0.3


def test_shared_and_independent_negatives_estimate_the_same_loss(graph):
    """Means over many batches agree (Monte Carlo) when the tables do not move."""
    losses = {}
    for mode in ("shared", "independent"):
        config = small(
            epochs=25, lr=1e-9, negative_mode=mode, negative_weights="uniform", decay=False
        )
        seen: list[float] = []

        class Watch(Run):
            def metric(self, name, value, step=None, seen=seen):
                if name == "loss":
                    seen.append(value)

        train_med(graph, config, run=Watch())
        losses[mode] = np.mean(seen)
    assert losses["shared"] == pytest.approx(losses["independent"], rel=0.02)


def test_early_stopping_keeps_the_best_state(graph):
    config = small(epochs=60, every=1, patience=2, lr=2.0, decay=False)
    embedding = train_med(graph, config)
    assert embedding.metrics["epochs"] < 60
    _, result = rank_embedding(embedding, graph, split="valid")
    mean = np.mean([result["dims"][str(d)]["mrr"] for d in config.dims])
    assert mean == pytest.approx(embedding.metrics["best_valid_mrr"], abs=1e-9)


def test_a_validation_split_is_held_out_where_there_is_none(graph):
    from dataclasses import replace

    bare = replace(graph, valid=graph.valid[:0])
    config = small(patience=2, every=2, fraction=0.1)
    train, valid = split_validation(bare, config, 0)
    assert len(valid) == round(0.1 * len(graph.train))
    both = {tuple(t) for t in train.tolist()} | {tuple(t) for t in valid.tolist()}
    assert len(train) + len(valid) == len(graph.train) == len(both)
    assert "best_valid_mrr" in train_med(bare, config).metrics


def test_large_graphs_validate_on_a_labelled_sample(graph):
    metrics = train_med(graph, small(every=4, candidates=20)).metrics
    assert "valid_sampled_mrr" in metrics and "valid_mrr" not in metrics


def test_crops_carry_the_first_coordinates_and_refuse_other_sizes(graph):
    embedding = train_med(graph, small(epochs=1))
    crop = embedding.crop(8)
    np.testing.assert_array_equal(crop.entities, embedding.entities[:, :8])
    np.testing.assert_array_equal(crop.relations, embedding.relations[:, :8])
    assert crop.spec.scale == pytest.approx(2 ** small().loss.scale_power) and crop.method == "med"
    with pytest.raises(MedappsError, match=r"not trained.*4, 8, 16"):
        embedding.crop(9)


def test_a_saved_embedding_comes_back(graph, tmp_path):
    embedding = train_med(graph, small(epochs=1))
    back = embedding.save(tmp_path / "embedding")
    assert np.array_equal(back.entities, embedding.entities)
    assert (back.dims, back.specs, back.about) == (embedding.dims, embedding.specs, embedding.about)
    assert isinstance(back.entities, np.memmap)
    reports = [rank_embedding(x, graph)[1] for x in (embedding, back)]
    assert reports[0] == reports[1]


def test_figures_and_progress_are_reported(graph):
    seen: list[Progress] = []
    names: set[str] = set()

    class Watch(Run):
        def metric(self, name, value, step=None):
            names.add(name)

    embedding = train_med(graph, small(epochs=30), run=Watch(), progress=seen.append)
    assert {"loss", "triples_per_second", "seconds_score", "valid_mrr_4", "peak_rss_bytes"} <= names
    assert seen and all(p.epochs == 30 and p.seconds_left >= 0 for p in seen)
    assert {"train_seconds", "peak_rss_bytes", "loss"} <= set(embedding.metrics)


def test_divergence_is_reported_with_a_remedy(graph):
    with pytest.raises(MedappsError, match="Lower the learning rate"):
        train_med(graph, small(scorer="distmult", optimiser="lazy_adam", lr=1e4, epochs=50))


def test_too_little_memory_is_said_before_the_start(graph, monkeypatch):
    monkeypatch.setattr("medapps.memory.available_bytes", lambda: 1000)
    with pytest.raises(MedappsError, match=r"needs .* GiB .*adagrad"):
        train_med(graph, small(optimiser="lazy_adam"))


def test_an_empty_graph_is_refused():
    from dataclasses import replace

    graph = make_graph()
    with pytest.raises(MedappsError, match="no training triples"):
        train_med(replace(graph, train=graph.train[:0]), small())


def test_stopping_without_a_folder_still_ends_cleanly(graph):
    with pytest.raises(Interrupted):
        train_med(graph, small(), stop=lambda: True)


def test_the_peak_of_a_small_program_is_its_own_even_when_a_large_one_starts_it():
    held = bytearray(300 * 2**20)
    held[:: 2**12] = b"x" * len(held[:: 2**12])  # every page is touched
    script = "from medapps.train.memory import peak_rss_bytes; print(peak_rss_bytes())"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert peak_rss_bytes() - int(done.stdout) > 100 * 2**20
