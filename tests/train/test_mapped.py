"""A table in a file: the same training, within its memory, safe when it is cut off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from medapps.errors import MedappsError
from medapps.evaluate.link_prediction import rank_embedding
from medapps.train.config import MedConfig
from medapps.train.med import train_med
from medapps.train.memory import (
    BASE,
    Sizes,
    check_disk,
    check_memory,
    needed_bytes,
    plan_mapped,
)
from medapps.train.step import new_model
from medapps.train.tables import working_file
from tests.train.conftest import make_graph
from tests.train.test_resume import interrupted_after

CPU = torch.device("cpu")
CONFIG = MedConfig(
    dims=(4, 16), epochs=4, batch=32, chunk=16, negatives=16, margin=1.0, lr=0.1, threads=1,
    table="mmap",
)  # fmt: skip
PAPER = 6_974_959, 15, 50_775_620


def small(config: MedConfig, over: int) -> MedConfig:
    """With so little memory above the program's own that a table of 64 rows is cut."""
    return config.changed(memory=str(BASE + over))


def partitions(config: MedConfig) -> int:
    graph = make_graph()
    return plan_mapped(Sizes(len(graph.entities), 6, len(graph.train), config)).partitions


def cut(config: MedConfig = CONFIG, **changes) -> MedConfig:
    """A config that gives at least four partitions on the small graph."""
    config = config.changed(**changes)
    for over in range(4000, 400_000, 250):
        try:
            if 4 <= partitions(small(config, over)) <= 12:
                return small(config, over)
        except MedappsError:
            continue
    raise AssertionError("no limit cuts the table")


def test_one_partition_starts_like_a_table_in_memory(tmp_path):
    inside = new_model(CONFIG.changed(table="fp32"), 50, 3, 7)
    mapped = new_model(CONFIG, 50, 3, 7, folder=tmp_path)
    assert np.array_equal(inside.entities.numpy(), mapped.entities.numpy())
    assert not list(tmp_path.iterdir()), "a working file has no name"


@pytest.mark.parametrize("optimiser", ["adagrad", "lazy_adam"])
def test_stopped_and_resumed_equals_uninterrupted(tmp_path, optimiser):
    config = cut(optimiser=optimiser, lr=0.05)
    assert partitions(config) >= 4
    whole = train_med(make_graph(), config)
    for part in range(4):
        interrupted_after(make_graph(), config, tmp_path, 9, resume=part > 0)
    resumed = train_med(make_graph(), config, checkpoint_dir=tmp_path, resume=True)
    assert np.array_equal(whole.entities, resumed.entities)
    assert np.array_equal(whole.relations, resumed.relations)


def test_one_partition_equals_a_table_in_memory_and_many_learn_as_much(tmp_path):
    graph, longer = make_graph(12), {"epochs": 40, "filter_known": False}
    inside = train_med(graph, CONFIG.changed(**(longer | {"table": "fp32"})))
    one = train_med(graph, CONFIG.changed(**longer))
    assert np.array_equal(one.entities, inside.entities)
    few = small(CONFIG.changed(**longer), 64_000)
    assert plan_mapped(Sizes(144, 6, len(graph.train), few)).partitions >= 3
    mapped = train_med(graph, few).save(tmp_path / "saved")
    mrr = [rank_embedding(e, graph)[1]["dims"]["16"]["mrr"] for e in (mapped, inside)]
    assert mrr[0] > 0.9 * mrr[1] > 0.25


def test_entities_keep_their_length_in_a_file_as_in_memory():
    changes = {"scorer": "pairre", "keep_length": True, "filter_known": False}
    inside = train_med(make_graph(), CONFIG.changed(**(changes | {"table": "fp32"})))
    one = train_med(make_graph(), CONFIG.changed(**changes))
    assert np.array_equal(one.entities, inside.entities)
    many = train_med(make_graph(), cut(**changes))
    assert np.linalg.norm(many.entities, axis=1) == pytest.approx(
        CONFIG.optimiser.init_norm, rel=1e-5
    )


def test_what_was_decided_is_said():
    said: list[str] = []
    train_med(make_graph(), cut(), say=said.append)
    assert "partitions" in said[0] and "two in memory" in said[0]


def test_the_index_of_known_triples_gives_way_when_memory_is_short():
    wide, narrow = (
        plan_mapped(Sizes(*PAPER, MedConfig(table="mmap", memory=text)))
        for text in ("4GiB", "1GiB")
    )
    assert wide.filter_known and not narrow.filter_known
    assert wide.partitions < narrow.partitions


def test_estimates_of_the_papers_size():
    gib = {
        kind: sum(needed_bytes(Sizes(*PAPER, MedConfig(table=kind)), best_in_memory=False).values())
        / 2**30
        for kind in ("fp32", "bf16", "mmap")
    }
    assert 13 < gib["fp32"] < 15 and 6.5 < gib["bf16"] < 8.5 and gib["mmap"] < 4


def test_too_little_memory_and_disk_are_said_with_numbers(tmp_path):
    with pytest.raises(MedappsError, match=r"too little .* even with the table in a file"):
        plan_mapped(Sizes(*PAPER, MedConfig(table="mmap", memory="400MiB")))
    config = MedConfig(memory="2GiB")
    needed = needed_bytes(Sizes(*PAPER, config), best_in_memory=False)
    with pytest.raises(MedappsError, match=r"2.00 GiB are allowed") as refused:
        check_memory(needed, config)
    assert "--table bf16" in str(refused.value.fix) and "--table mmap" in str(refused.value.fix)
    huge = Sizes(10**12, 15, 10**10, config)
    with pytest.raises(MedappsError, match=r"checkpoints [\d.]+, embedding [\d.]+.*are free on"):
        check_disk(huge, tmp_path / "not" / "yet")


def test_a_full_disk_is_said_before_work_starts(tmp_path):
    with pytest.raises(MedappsError, match=r"working file of [\d.]+ GiB does not fit"):
        working_file(tmp_path, (2**45,), "float32")


SCRIPT = """
import json, sys
from pathlib import Path
from medapps.train.config import MedConfig
from medapps.train.memory import peak_rss_bytes
from medapps.train.med import train_med
from tests.train.test_mapped import large_graph
config = MedConfig(dims=(10, 256), epochs=1, batch=2048, chunk=2048, negatives=64, threads=1,
    table=sys.argv[2], memory=sys.argv[3] if len(sys.argv) > 3 else None)
embedding = train_med(large_graph(), config, checkpoint_dir=Path(sys.argv[1]) / "state")
embedding.save(Path(sys.argv[1]) / "saved")
print(json.dumps(peak_rss_bytes()))
"""


def large_graph():
    """600,000 entities, whose table at 256 dims takes 586 MiB."""
    import polars as pl

    from medapps.graph.graph import Graph
    from medapps.graph.ids import IdMap

    rng = np.random.default_rng(0)
    triples = rng.integers(0, 600_000, (40_000, 3), np.int32)
    triples[:, 1] = 0
    names = IdMap.of_sorted(pl.Series(np.arange(600_000)))
    none = np.empty((0, 3), np.int32)
    return Graph(names, IdMap.of_sorted(pl.Series([0])), triples, none, none, none[:, 0])


@pytest.mark.slow
def test_memory_stays_within_the_limit(tmp_path):
    limit = 560 * 2**20
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), "mmap", str(limit)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) < limit
