"""Sharded checkpoints: every rank writes its rows, any number of ranks reads them back.

A saved noun like the others: its manifest names every shard with size and SHA-256, so that a
missing or altered one is refused, and it appears whole or not at all. The folder must be one that
all ranks see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from medapps.errors import MedappsError
from medapps.store import VERIFY_BELOW, Draft, disk_errors, read_manifest, writing
from medapps.train.checkpoint import Counters, check_identity
from medapps.train.distributed.group import Group, talking
from medapps.train.distributed.shards import ShardReader, ShardWriter

KIND = "sharded checkpoint"


@contextmanager
def writing_together(
    group: Group,
    folder: Path,
    *,
    kind: str,
    config: Mapping[str, Any] | None = None,
    parents: Mapping[str, str] | None = None,
) -> Iterator[Draft]:
    """`store.writing` by all ranks: rank 0 opens and seals the folder, everybody writes into it."""
    with ExitStack() as stack:

        def begin() -> str:
            draft = writing(folder, kind=kind, config=config, parents=parents, force=True)
            mine.append(stack.enter_context(draft))
            return str(mine[0].folder.resolve())

        mine: list[Draft] = []
        path = Path(group.first(begin))
        group.agree(lambda: seen(path))
        yield mine[0] if mine else Draft(path)
        group.agree(stack.close)


def seen(path: Path) -> None:
    """Refuse to go on where something that rank 0 made is not there for this rank."""
    if not path.exists():
        raise MedappsError(
            f"{path}, where rank 0 writes, is not to be seen here.",
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
    """Replace the checkpoint in `folder`; tensors of entities are this rank's rows of `rows`."""
    with writing_together(group, folder, kind=KIND) as draft:
        with _planned(group, folder):
            dcp.save(_spread(group, rows, tensors), storage_writer=ShardWriter(draft.folder))
        draft.about = {"counters": asdict(at), "identity": identity, "ranks": group.world}


def load_shards(
    group: Group, rows: int, folder: Path, tensors: dict[str, Tensor], identity: dict[str, Any]
) -> Counters:
    """Fill `tensors` in place and return the counters, whatever number of ranks wrote them."""

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
    """The tensors of entities as parts of whole ones; the others are the same on all ranks."""
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
    """What went wrong on some rank inside DCP, as a sentence on all of them."""
    try:
        with talking(group.rank):
            yield
    except CheckpointException as error:
        rank, failure = next(iter(sorted(error.failures.items())))
        cause = failure[0]
        with disk_errors(folder):
            if isinstance(cause, OSError):
                raise cause from error
        raise MedappsError(f"Rank {rank} failed at {folder}: {cause!r}.") from error
