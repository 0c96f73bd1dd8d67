"""One, two and three ranks train the same embedding, and refuse the same things."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from medapps.crop.embedding import Embedding
from medapps.model.rules import make_scorer
from medapps.train.batches import sampler_of
from medapps.train.med import train_med
from tests.train.distributed.launch import launch
from tests.train.distributed.scenarios import CONFIGS, GRAPH, SEED, main, watched
from tests.train.distributed.wire import sent_bytes

WORLDS = (2, 1, 3)  # two ranks leave the checkpoint from which the others go on


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def launched(folder) -> dict[int, dict]:
    """What each number of ranks reports; one rank is this process."""
    launch(2, "-m", "tests.train.distributed.scenarios", folder)
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        alone = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in (alone | {"GLOO_SOCKET_IFNAME": "lo"}).items():
            patch.setenv(name, str(value))
        torch.set_num_threads(1)
        main(folder)
    launch(3, "-m", "tests.train.distributed.scenarios", folder)
    return {world: json.loads((folder / f"{world}.json").read_text()) for world in WORLDS}


@pytest.fixture(scope="module")
def ordinary() -> dict[str, tuple[list, Embedding]]:
    """The same trainings without any ranks."""
    torch.set_num_threads(1)
    out = {}
    for name, config in CONFIGS.items():
        with watched() as (losses, _, _):
            made = train_med(GRAPH, config, seed=SEED)
        out[name] = losses, made
    return out


def farthest(got: list, expected: list) -> float:
    assert [len(step) for step in got] == [len(step) for step in expected]
    return max(np.abs(np.subtract(a, b)).max() for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("name", CONFIGS)
def test_one_rank_is_ordinary_training_bit_for_bit(launched, ordinary, folder, name):
    losses, expected = ordinary[name]
    assert launched[1]["losses"][name] == losses
    made = Embedding.load(folder / "1" / name)
    assert np.array_equal(made.entities, expected.entities)
    assert np.array_equal(made.relations, expected.relations)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "bf16"])
def test_losses_and_tables_do_not_depend_on_the_number_of_ranks(
    launched, ordinary, folder, name, world
):
    losses, expected = ordinary[name]
    assert len(losses) >= (20 if name != "lonely" else 10)
    assert farthest(launched[world]["losses"][name], losses) < 1e-5
    made = Embedding.load(folder / str(world) / name)
    np.testing.assert_allclose(made.entities, expected.entities, atol=1e-5)
    np.testing.assert_allclose(made.relations, expected.relations, atol=1e-5)
    for key, value in expected.metrics.items():
        if "mrr" in key:  # ranks are counted, not added up: equal unless a distance moved
            assert made.metrics[key] == pytest.approx(value, rel=1e-3), key


@pytest.mark.parametrize("world", [2, 3])
def test_rounding_at_random_gives_ranks_tables_of_their_own(launched, ordinary, world):
    """bfloat16 rows are rounded with other random bits, so losses agree only nearly."""
    got, expected = launched[world]["losses"]["bf16"], ordinary["bf16"][0]
    assert 1e-7 < farthest(got, expected) < 2e-2


@pytest.mark.parametrize("name", CONFIGS)
def test_no_rank_holds_the_whole_table(launched, name):
    """Neither the vectors nor the optimiser's state of more than its own rows."""
    assert launched[1]["rows"][name] == [[64]]
    assert launched[2]["rows"][name] == [[32], [32]]
    assert launched[3]["rows"][name] == [[22], [22], [20]]


@pytest.mark.parametrize("world", WORLDS)
def test_a_checkpoint_of_two_ranks_goes_on_with_any_number(launched, ordinary, folder, world):
    assert launched[2]["interrupted"]
    losses, expected = ordinary["stages"]
    rest = launched[world]["losses"]["resumed"]
    assert 0 < len(rest) == len(losses) - 13
    assert farthest(rest, losses[13:]) < 1e-5
    made = Embedding.load(folder / str(world) / "resumed")
    np.testing.assert_allclose(made.entities, expected.entities, atol=1e-5)


def test_checkpoints_hold_no_pickle(launched, folder):
    files = sorted(path.name for path in (folder / "left" / "last").iterdir())
    assert files == ["manifest.json", "shard_00000.safetensors", "shard_00001.safetensors"]


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("missing", r"shard_00001.safetensors is missing"),
        ("altered", r"shard_00000.safetensors was altered"),
        ("graph", r"is a checkpoint of another graph"),
        ("dims", r"another config: dims=\[4, 16\], now \[4, 20\]"),
        ("configs", r"Process 1 has another config than process 0: optimiser.lr=0.2, not 0.1"),
        ("seeds", r"Process 1 has another config than process 0: seed=1, not 0"),
        ("graphs", r"Process \d has another graph than process 0: triples=\d+, not \d+"),
        ("tiny", r"1 entities cannot be shared by \d processes"),
        ("folders", r"Process 1 has another workspace than process 0"),
    ],
)
def test_bad_input_is_refused_on_every_rank(launched, what, sentence):
    for world in WORLDS:
        texts = launched[world]["refused"].get(what)
        if texts is None:
            assert world == 1, "one rank cannot differ from itself"
            continue
        assert len(texts) == world
        for text in texts:
            assert re.search(sentence, text), text


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", ["usual", "paper", "pairre", "bf16", "lonely"])
def test_bytes_on_the_wire_are_those_of_the_formula(launched, name, world):
    """What the ranks counted while sending equals what the ids alone predict."""
    config = CONFIGS[name]
    whole = sampler_of(GRAPH.train, len(GRAPH.entities), config, SEED, None)  # masks do not travel
    counted = launched[world]["sent"][name]  # rank, step
    width, relation_width, _ = make_scorer(config.scorer, config.norm).widths(16)
    for step in range(len(counted[0])):
        epoch, place = divmod(step, whole.steps)
        parts = [replace(whole, part=(rank, world)).batch(epoch, place) for rank in range(world)]
        expected = sent_bytes(
            parts,
            len(GRAPH.entities),
            len(GRAPH.relations),
            width=width,
            relation_width=relation_width,
            number=2 if name == "bf16" else 4,
        )
        for rank in range(world):
            for purpose, size in counted[rank][step].items():
                assert size == pytest.approx(expected[rank][purpose]), (rank, step, purpose)
