"""A bfloat16 table: exact where it can be, right on average elsewhere, resumable bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from medapps.arrays import open_arrays, widened
from medapps.crop.embedding import Embedding
from medapps.evaluate.link_prediction import rank_embedding
from medapps.train.config import MedConfig
from medapps.train.med import train_med
from medapps.train.tables import add_rows, as_numpy, as_tensor, rounded, rounding_noise
from tests.train.conftest import make_graph
from tests.train.test_resume import interrupted_after

CONFIG = MedConfig(
    dims=(4, 16), epochs=4, batch=32, chunk=16, negatives=16, margin=1.0, lr=0.1, threads=1,
    table="bf16",
)  # fmt: skip


def neighbours(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The bfloat16 numbers on both sides of float32 values, by toggling bits in NumPy."""
    bits = values.numpy().view(np.uint32)
    low = (bits & np.uint32(0xFFFF0000)).view(np.float32)
    high = ((bits & np.uint32(0xFFFF0000)) + np.uint32(0x10000)).view(np.float32)
    return torch.from_numpy(low), torch.from_numpy(high)


def test_numbers_that_bfloat16_holds_are_kept_exactly():
    exact = torch.randn(100, 64).bfloat16()
    exact[0, :4] = torch.tensor([0.0, -0.0, 1.0, -2.0]).bfloat16()
    for noise in (torch.full((100, 64), -(2**15)), torch.full((100, 64), 2**15 - 1)):
        got = rounded(exact.float(), noise.to(torch.int16)).view(torch.bfloat16)
        assert torch.equal(got.view(torch.int16), exact.view(torch.int16))


def test_other_numbers_go_to_a_neighbour_and_are_right_on_average():
    values = torch.tensor([0.1, -0.3, 1.0 + 2**-12, -7.77, 3e-5, 1e20])
    low, high = neighbours(values)
    draws = 100_000
    noise = rounding_noise(0, 0, draws * len(values)).view(draws, -1)
    got = rounded(values.repeat(draws, 1), noise).view(torch.bfloat16).float()
    assert ((got == low) | (got == high)).all()
    mean, step = got.double().mean(0), (high - low).double().abs()
    error = (mean - values.double()).abs() / step  # standard deviation at most 0.5 / sqrt(draws)
    assert error.max() < 5 * 0.5 / draws**0.5
    nearest = (values.bfloat16().double() - values.double()).abs() / step
    assert nearest.max() > 0.05, "rounding to nearest would fail this test"


def test_moves_too_small_for_bfloat16_add_up():
    table = torch.ones(1000, 8, dtype=torch.bfloat16)
    ids = torch.arange(1000, dtype=torch.int32)
    for count in range(200):
        add_rows(table, ids, torch.full((1000, 8), 1e-4), 0, count)
    assert abs(table.double().mean() - 1.02) < 5e-4
    assert (torch.ones(1, dtype=torch.bfloat16) + 1e-4).item() == 1.0


def test_only_the_named_rows_move_and_noise_belongs_to_seed_and_update():
    start = torch.randn(20, 8).bfloat16()
    ids = torch.tensor([3, 7, 19], dtype=torch.int32)

    def moved(seed: int, count: int) -> torch.Tensor:
        table = start.clone()
        add_rows(table, ids, torch.full((3, 8), 0.01), seed, count)
        return table

    others = torch.ones(20, dtype=torch.bool)
    others[ids.long()] = False
    assert torch.equal(moved(0, 0)[others], start[others])
    assert torch.equal(moved(0, 0), moved(0, 0))
    assert not torch.equal(moved(0, 0), moved(0, 1))
    assert not torch.equal(moved(0, 0), moved(1, 0))


def test_bit_patterns_travel_without_a_copy():
    table = torch.randn(5, 3).bfloat16()
    bits = as_numpy(table)
    assert bits.dtype == np.uint16 and np.shares_memory(bits, table.view(torch.int16).numpy())
    assert torch.equal(as_tensor(bits), table)
    assert np.array_equal(widened(bits), table.float().numpy())


@pytest.mark.parametrize("optimiser", ["adagrad", "lazy_adam"])
@pytest.mark.parametrize("mode", ["shared", "independent"])
def test_stopped_and_resumed_equals_uninterrupted(tmp_path, optimiser, mode):
    config = CONFIG.changed(optimiser=optimiser, negative_mode=mode, lr=0.05)
    whole = train_med(make_graph(), config)
    for part in range(4):
        interrupted_after(make_graph(), config, tmp_path, 9, resume=part > 0)
    resumed = train_med(make_graph(), config, checkpoint_dir=tmp_path, resume=True)
    assert whole.entities.dtype == np.uint16
    assert np.array_equal(whole.entities, resumed.entities)
    assert np.array_equal(whole.relations, resumed.relations)


def test_a_saved_table_ranks_and_crops_like_its_float32_numbers(tmp_path):
    graph = make_graph()
    trained = train_med(graph, CONFIG)
    saved = trained.save(tmp_path / "bf16")
    assert open_arrays(tmp_path / "bf16" / "vectors.safetensors")["entities"].dtype == np.uint16
    wide = Embedding(**(vars(trained) | {"entities": widened(trained.entities)}))
    assert rank_embedding(saved, graph)[1] == rank_embedding(wide, graph)[1]
    names = graph.entities.names()[:7]
    for dim in CONFIG.dims:
        crop = saved.crop(dim)
        assert crop.dtype == "bfloat16"
        assert np.array_equal(crop.vectors(names)[0], wide.crop(dim).vectors(names)[0])
        kept = crop.save(tmp_path / f"crop{dim}")
        assert kept.dtype == "float32" and np.array_equal(kept.entities, wide.crop(dim).entities)


def test_other_tools_read_the_table_as_bfloat16(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    trained = train_med(make_graph(), CONFIG)
    trained.save(tmp_path / "bf16")
    read = safetensors.load_file(tmp_path / "bf16" / "vectors.safetensors")["entities"]
    assert read.dtype == torch.bfloat16 and torch.equal(read, as_tensor(trained.entities))
