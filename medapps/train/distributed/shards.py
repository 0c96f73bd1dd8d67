"""DCP storage: one safetensors file per rank, streamed out and read back in pieces.

torch.distributed.checkpoint plans who writes and who reads what; these two only move bytes. They
follow its own safetensors storage (`HuggingFaceStorageWriter` with `save_distributed`): the header
of a file says where its rows stand in the whole table (`DCP_SHARDING_INFO`), so nothing on disk is
pickled. DCP's usual storage would pickle its plan into a `.metadata` file. Unlike the original they
never hold a second copy of a shard.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from medapps.arrays import Blocks, open_arrays, write_arrays
from medapps.train.tables.bf16 import as_numpy, as_tensor

PIECE = 65536
"""Rows that are read at a time."""
_CODES = {torch.bfloat16: "BF16"}


class ShardWriter(HuggingFaceStorageWriter):
    """Writes what DCP plans for this rank into `shard_RANK.safetensors`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), save_distributed=True)
        self.folder = Path(folder)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Number the files by rank."""
        return [
            dataclasses.replace(plan, storage_data=f"shard_{rank:05d}.safetensors")
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Stream the tensors of this rank."""
        arrays: dict[str, Blocks] = {}
        offsets: dict[str, dict[str, list[int]]] = {}
        results = []
        for item in plan.items:
            tensor = planner.resolve_data(item)
            assert isinstance(tensor, torch.Tensor) and item.tensor_data is not None, item.index
            array, name = as_numpy(tensor), item.index.fqn
            code = _CODES.get(tensor.dtype)
            arrays[name] = Blocks(array.shape, array.dtype.name, [array], code)
            offsets[name] = {"saved_offsets": list(item.tensor_data.chunk.offsets)}
            results.append(WriteResult(item.index, array.nbytes, plan.storage_data))
        if arrays:
            about = {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0"}
            write_arrays(self.folder / plan.storage_data, arrays, about | {"format": "pt"})
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done


class ShardReader(HuggingFaceStorageReader):
    """Reads what this rank needs from the files of all ranks, memory-mapped."""

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the planned parts, a few rows at a time."""
        files: dict[str, dict[str, Any]] = {}
        for item in plan.items:
            path = self.storage_data[item.storage_index].relative_path
            if path not in files:
                files[path] = open_arrays(Path(path))
            self._copy(item, files[path][item.storage_index.fqn], planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _copy(self, item: ReadItem, array: Any, planner: LoadPlanner) -> None:
        target = planner.resolve_tensor(item).detach()
        ranges = zip(item.storage_offsets, item.lengths, strict=True)
        source = array[tuple(slice(start, start + length) for start, length in ranges)]
        assert source.shape == tuple(target.shape), (item.storage_index, source.shape)
        for first in range(0, len(target), PIECE):
            target[first : first + PIECE] = as_tensor(source[first : first + PIECE])
        planner.commit_tensor(item, target)
