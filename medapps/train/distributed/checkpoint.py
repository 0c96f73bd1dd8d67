"""Sharded checkpoints: every process writes its rows, any number of processes reads them back.

A saved noun like the others: its manifest names every shard with size and SHA-256, so that a
missing or altered one is refused, and it appears whole or not at all. The folder must be one that
all processes see.

torch.distributed.checkpoint (DCP) plans who writes and who reads what; `ShardWriter` and
`ShardReader` only move bytes, one safetensors file per process, in pieces. They follow DCP's own
safetensors storage (`HuggingFaceStorageWriter` with `save_distributed`): the header of a file says
where its rows stand in the whole table (`DCP_SHARDING_INFO`), so nothing on disk is pickled, and no
second copy of a shard is held.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.futures import Future

from medapps.arrays import Blocks, open_arrays, write_arrays
from medapps.errors import MedappsError
from medapps.store import (
    REPLACE,
    VERIFY_BELOW,
    Draft,
    Provenance,
    disk_errors,
    read_manifest,
    writing,
)
from medapps.train.checkpoint import Counters, check_identity
from medapps.train.distributed.group import Group, talking
from medapps.train.tables import as_numpy, as_tensor

KIND = "sharded checkpoint"
PIECE = 65536
"""Rows that are read at a time."""
_CODES = {torch.bfloat16: "BF16"}


@contextmanager
def writing_together(
    group: Group,
    folder: Path,
    *,
    kind: str,
    provenance: Provenance = REPLACE,
) -> Iterator[Draft]:
    """`store.writing` by all: process 0 opens and seals the folder, everybody writes into it."""
    with ExitStack() as stack:

        def begin() -> str:
            draft = writing(folder, kind=kind, provenance=provenance)
            mine.append(stack.enter_context(draft))
            return str(mine[0].folder.resolve())

        mine: list[Draft] = []
        path = Path(group.first(begin))
        group.agree(lambda: seen(path))
        yield mine[0] if mine else Draft(path)
        group.agree(stack.close)


def seen(path: Path) -> None:
    """Refuse to go on where something that process 0 made is not there for this process."""
    if not path.exists():
        raise MedappsError(
            f"{path}, where process 0 writes, is not to be seen here.",
            fix="Ranks need one --workspace on a disk that all machines share, at the same path.",
        )


def save_shards(
    group: Group,
    rows: int,
    folder: Path,
    tensors: dict[str, Tensor],
    at: Counters,
    identity: dict[str, Any],
) -> None:
    """Replace the checkpoint in `folder`; tensors of entities are this process's rows of `rows`."""
    with writing_together(group, folder, kind=KIND) as draft:
        with _planned(group, folder):
            dcp.save(_spread(group, rows, tensors), storage_writer=ShardWriter(draft.folder))
        draft.about = {
            "counters": dataclasses.asdict(at),
            "identity": identity,
            "ranks": group.world,
        }


def load_shards(
    group: Group, rows: int, folder: Path, tensors: dict[str, Tensor], identity: dict[str, Any]
) -> Counters:
    """Fill `tensors` in place and return the counters, whatever number of processes wrote them."""

    def check() -> dict[str, Any]:
        below = VERIFY_BELOW if group.rank == 0 else 0
        about = read_manifest(folder, kind=KIND, verify_below=below).about
        check_identity(about["identity"], identity, folder)
        held = ShardReader(str(folder)).read_metadata().state_dict_metadata
        for name, tensor in wanted.items():
            size = getattr(held.get(name), "size", None)
            if size is None or tuple(size) != tuple(tensor.shape):
                raise MedappsError(f"{folder} holds no {name} of this training's size.")
        return about

    wanted = _spread(group, rows, tensors)
    about = group.agree(check)
    with _planned(group, folder):
        dcp.load(wanted, storage_reader=ShardReader(str(folder)))
    return Counters(**about["counters"])


def _spread(group: Group, rows: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of entities as parts of whole ones; the others are the same on all processes."""
    mesh = init_device_mesh(group.device.type, (group.world,))
    out = dict(tensors)
    for name, tensor in tensors.items():
        if name == "entities" or name.startswith("entity_"):
            shape = torch.Size([rows, *tensor.shape[1:]])
            stride = torch.empty(shape, device="meta").stride()
            out[name] = DTensor.from_local(
                tensor, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
            )
    return out


@contextmanager
def _planned(group: Group, folder: Path) -> Iterator[None]:
    """What went wrong on some process inside DCP, as a sentence on all of them."""
    try:
        with talking(group.rank):
            yield
    except CheckpointException as error:
        rank, failure = next(iter(sorted(error.failures.items())))
        cause = failure[0]
        with disk_errors(folder):
            if isinstance(cause, OSError):
                raise cause from error
        raise MedappsError(f"Process {rank} failed at {folder}: {cause!r}.") from error


class ShardWriter(HuggingFaceStorageWriter):
    """Writes what DCP plans for this process into `shard_RANK.safetensors`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), save_distributed=True)
        self.folder = Path(folder)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Number the files by process."""
        return [
            dataclasses.replace(plan, storage_data=f"shard_{rank:05d}.safetensors")
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Stream the tensors of this process."""
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
    """Reads what this process needs from the files of all processes, memory-mapped."""

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
