"""The processes that torchrun started: how they talk, what it costs, how they refuse together.

Messages about the work are JSON, never pickled objects. Every collective is counted under a
purpose, in the bytes that this process sends to others; a reduction counts as a ring, which sends
2 (W - 1) / W of its size.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from medapps.errors import MedappsError
from medapps.train.step import pick_device

T = TypeVar("T")
PATIENCE = timedelta(hours=1)
"""How long a process waits for the others, who may be reading a graph; death is noticed soon."""
_LOST = re.compile("connect|closed|reset|timed out|timeout|socket|peer", re.IGNORECASE)
"""What gloo says when another process is gone."""
_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Group:
    """All processes of one launch, as one of them sees them."""

    rank: int
    world: int
    neighbours: int
    """Ranks on this machine."""
    device: torch.device
    sent: Counter[str] = field(default_factory=Counter)
    """Bytes that this process sent to others, by purpose."""

    def exchange(self, purpose: str, rows: Tensor, give: list[int], take: list[int]) -> Tensor:
        """Rows for every process in turn: `give[i]` go to process i, `take[i]` come from it."""
        rows = rows.contiguous()
        others = sum(give) - give[self.rank]
        self.sent[purpose] += others * rows[:1].numel() * rows.element_size() if others else 0
        out = rows.new_empty((sum(take), *rows.shape[1:]))
        ends = out, rows
        if rows.dtype == torch.bfloat16:  # not among gloo's number types
            ends = out.view(torch.uint8), rows.view(torch.uint8)
        with talking(self.rank):
            dist.all_to_all_single(*ends, take, give)
        return out

    def reduce(self, purpose: str, value: Tensor, *, largest: bool = False) -> Tensor:
        """The sum, or the largest, over all processes, in place; bit for bit the same on all."""
        size = value.numel() * value.element_size()
        self.sent[purpose] += 2 * (self.world - 1) * size / self.world  # type: ignore[assignment]
        with talking(self.rank):
            dist.all_reduce(value, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)
        return value

    def gather(self, value: Any) -> list[Any]:
        """A JSON-able value of every process."""
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        with talking(self.rank):
            dist.all_gather(sizes, torch.tensor([len(text)]))
            longest = max(int(size) for size in sizes)
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(text)] = text
            texts = [torch.empty_like(padded) for _ in sizes]
            dist.all_gather(texts, padded)
        pairs = zip(texts, sizes, strict=True)
        return [json.loads(bytes(one[: int(size)].tolist())) for one, size in pairs]

    def agree(self, work: Callable[[], T]) -> T:
        """Do something that may be refused: refused to one process is refused to all."""
        result, problem = None, None
        try:
            result = work()
        except MedappsError as error:
            problem = [error.problem, error.fix]
        problems = self.gather(problem)
        if any(problems):
            rank = next(i for i, one in enumerate(problems) if one)
            text, fix = problems[rank]
            where = "" if all(problems) or rank == 0 else f"Process {rank}: "
            raise MedappsError(where + text, fix=fix)
        return result  # type: ignore[return-value]

    def first(self, work: Callable[[], T]) -> T:
        """What process 0 gets from `work`, a JSON-able value, on every process."""
        mine = self.agree(lambda: work() if self.rank == 0 else None)
        value: T = self.gather(mine)[0]
        return value

    def same(self, value: dict[str, Any], what: str) -> None:
        """Refuse to go on where processes differ in a flat dictionary."""
        values = self.gather(value)
        for rank, other in enumerate(values):
            keys = [key for key in values[0] | other if values[0].get(key) != other.get(key)]
            if keys:
                differ = "; ".join(
                    f"{key}={other.get(key)!r}, not {values[0].get(key)!r}" for key in keys
                )
                raise MedappsError(
                    f"Process {rank} has another {what} than process 0: {differ}.",
                    fix="Start torchrun with the same command and the same data on every machine.",
                )


@contextmanager
def talking(rank: int) -> Iterator[None]:
    """Say in a sentence that another process is gone."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not _LOST.search(str(error)):
            raise
        reason = str(error).strip().splitlines()[0][:200]
        raise MedappsError(
            f"Process {rank} lost the others in the middle of the work ({reason}).",
            fix="The process that ended first says why. torchrun --max-restarts 3 goes on from the "
            "last checkpoint by itself; otherwise give --resume.",
        ) from error


def launched() -> bool:
    """Did torchrun (or something like it) start this process?"""
    return all(name in os.environ for name in _LAUNCHED)


def restarts() -> int:
    """How often torchrun started these processes again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@contextmanager
def joined(device: str) -> Iterator[Group]:
    """Join the other processes of this launch until the block ends: gloo for a CPU, NCCL for CUDA.

    Small messages go through gloo in both cases.
    """
    if not launched():
        raise MedappsError(
            "--distributed needs the environment that torchrun sets.",
            fix="Start it so: torchrun --nproc-per-node 2 -m medapps train --kg PATH "
            "--distributed (several machines: docs/distributed.md).",
        )
    place = pick_device(device)
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if place.type == "cuda":
        torch.cuda.set_device(local)
        place = torch.device("cuda", local)
    rank = int(os.environ["RANK"])
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    with talking(rank):
        store, _, world = next(dist.rendezvous("env://", timeout=PATIENCE))
        # torchrun keeps its store over a restart, with the addresses of the dead (pytorch#167288)
        store = dist.PrefixStore(f"medapps/{restarts()}", store)
        dist.init_process_group(backend, timeout=PATIENCE, store=store, rank=rank, world_size=world)
    try:
        yield Group(
            rank=rank,
            world=dist.get_world_size(),
            neighbours=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
            device=place,
        )
    finally:
        dist.destroy_process_group()
