"""Killed at any moment and resumed, a training ends with the bytes of an undisturbed one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from medapps.crop.embedding import Embedding
from medapps.errors import Interrupted, MedappsError
from medapps.train.checkpoint import has_checkpoint
from medapps.train.config import MedConfig
from medapps.train.med import train_med
from tests.train.conftest import make_graph

CONFIG = MedConfig(
    dims=(4, 16),
    epochs=6,
    batch=32,
    chunk=16,
    negatives=16,
    margin=1.0,
    lr=0.1,
    threads=1,
    every=2,
    patience=50,
    dlw="literal",
    checkpoint_seconds=0.01,
)

LONG = CONFIG.changed(epochs=80)

SCRIPT = """
import os, random, signal, sys, time
from pathlib import Path
from medapps.train.med import train_med
from tests.train.conftest import make_graph
from medapps.store import read_manifest
from tests.train.test_resume import LONG

folder, whole, chance = Path(sys.argv[1]), float(sys.argv[2]), random.Random(0)
for attempt in range(21):
    child = os.fork()
    if child == 0:
        done = train_med(make_graph(), LONG, checkpoint_dir=folder / "state", resume=True)
        done.save(folder / "done")
        os._exit(0)
    if attempt < 20:
        time.sleep(0.02 + chance.uniform(0, whole / 16))  # twenty of them fall short of the end
        os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    if attempt == 19:
        about = read_manifest(folder / "state" / "last", kind="checkpoint").about
        print(about["counters"]["count"], flush=True)
"""


def undisturbed() -> Embedding:
    return train_med(make_graph(), CONFIG)


def interrupted_after(graph, config, folder: Path, steps: int, resume: bool) -> bool:
    """Train until `steps` more steps are done; True when the training ended before."""
    left = iter(range(steps))
    try:
        train_med(
            graph,
            config,
            checkpoint_dir=folder,
            resume=resume,
            stop=lambda: next(left, None) is None,
        )
    except Interrupted:
        return False
    return True


@pytest.mark.parametrize("optimiser", ["adagrad", "lazy_adam"])
def test_stopped_and_resumed_equals_uninterrupted(tmp_path, optimiser):
    graph = make_graph()
    config = CONFIG.changed(optimiser=optimiser, lr=0.05)
    whole = train_med(graph, config)
    for part in range(6):
        interrupted_after(graph, config, tmp_path, 7, resume=part > 0)
    resumed = train_med(graph, config, checkpoint_dir=tmp_path, resume=True)
    assert np.array_equal(whole.entities, resumed.entities)
    assert np.array_equal(whole.relations, resumed.relations)


def test_best_state_and_loss_weight_survive_a_resume(tmp_path):
    whole = undisturbed()
    for part in range(4):
        interrupted_after(make_graph(), CONFIG, tmp_path, 11, resume=part > 0)
    resumed = train_med(make_graph(), CONFIG, checkpoint_dir=tmp_path, resume=True)
    assert np.array_equal(whole.entities, resumed.entities)
    assert whole.metrics["best_epoch"] == resumed.metrics["best_epoch"]


def test_resuming_without_a_checkpoint_starts_anew(tmp_path):
    assert not has_checkpoint(tmp_path / "last")
    fresh = train_med(make_graph(), CONFIG, checkpoint_dir=tmp_path, resume=True)
    assert np.array_equal(fresh.entities, undisturbed().entities)


def test_checkpoints_of_another_training_are_refused(tmp_path):
    graph = make_graph()
    interrupted_after(graph, CONFIG, tmp_path, 5, resume=False)
    other = CONFIG.changed(lr=0.5)
    with pytest.raises(MedappsError, match=r"another config: optimiser.lr=0.1, now 0.5"):
        train_med(graph, other, checkpoint_dir=tmp_path, resume=True)
    with pytest.raises(MedappsError, match="another seed"):
        train_med(graph, CONFIG, seed=1, checkpoint_dir=tmp_path, resume=True)
    with pytest.raises(MedappsError, match="another graph"):
        changed = replace(graph, train=graph.train[:-1])
        train_med(changed, CONFIG, checkpoint_dir=tmp_path, resume=True)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    interrupted_after(make_graph(), CONFIG, tmp_path, 5, resume=False)
    state = tmp_path / "last" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-100])
    with pytest.raises(MedappsError):
        train_med(make_graph(), CONFIG, checkpoint_dir=tmp_path, resume=True)


@pytest.mark.slow
def test_twenty_kills_do_not_change_a_single_bit(tmp_path):
    """SIGKILL at random moments of a training that writes checkpoints all the time."""
    began = perf_counter()
    expected = train_med(make_graph(), LONG).save(tmp_path / "expected").manifest
    seconds = perf_counter() - began
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(seconds)]
    ends = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    *killed, steps, last = (int(line) for line in ends.stdout.split())
    assert killed == [-signal.SIGKILL] * 20, "a training ended before it was killed"
    assert last == 0 and steps > 0, ends.stderr
    assert Embedding.load(tmp_path / "done").manifest.digest == expected.digest
