"""Ranks on this machine: seconds per step, memory of a rank, bytes on the wire three ways.

python benchmarks/distributed.py --json          (ordinary training, then 1, 2 and 3 ranks)
python benchmarks/distributed.py --entities 20000 --ranks 2

Bytes are counted by the ranks, predicted from the ids, and read from the kernel's counter of the
loopback device. Where `unshare` may make one, the launch has a network of its own, so that nothing
else is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from medapps.graph.graph import Graph
from medapps.graph.ids import IdMap
from medapps.train.batches import sampler_of
from medapps.train.config import MedConfig

sys.path.insert(0, str(Path(__file__).parents[1]))  # the prediction is one of the tests'
from tests.train.distributed.wire import sent_bytes

RELATIONS = 15
WARM = 5
"""Steps that are not measured."""
PAPER = 6_974_959
"""Entities of the paper's graph."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entities", type=int, default=200_000)
    parser.add_argument("--triples", type=int, default=1_000_000)
    parser.add_argument("--dims", type=int, nargs="+", default=[10, 100, 500])
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--table", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--ranks", type=int, nargs="+", default=[0, 1, 2, 3], help="0: ordinary")
    parser.add_argument("--worker", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.worker is not None:
        work(options)
        return
    result: dict[str, Any] = {
        "environment": environment(),
        "options": {key: value for key, value in vars(options).items() if key != "worker"},
        "own_network": own_network(),
        "ranks": {},
    }
    for world in options.ranks:
        print(f"{world} ranks ..." if world else "ordinary training ...", file=sys.stderr)
        result["ranks"][str(world)] = launch(world)
    result["paper"] = {str(world): predicted(options, world, PAPER) for world in (2, 4, 8, 16)}
    print(json.dumps(result)) if options.json else show(result)


def environment() -> dict[str, Any]:
    """What the numbers depend on."""
    import torch

    return {
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "machine": platform.machine(),
        "torch": torch.__version__,
    }


def config_of(options: argparse.Namespace) -> MedConfig:
    """64 negatives shared by each chunk of 1024 positives, one thread."""
    return MedConfig.model_validate(
        {
            "dims": tuple(options.dims),
            "epochs": 1,
            "batch": options.batch,
            "chunk": min(1024, options.batch),
            "negatives": 64,
            "filter_known": False,
            "table": options.table,
            "threads": 1,
            "device": "cpu",
        }
    )


def graph_of(options: argparse.Namespace) -> Graph:
    """Random triples."""
    rng = np.random.default_rng(0)
    triples = rng.integers(0, options.entities, (options.triples, 3), np.int32)
    triples[:, 1] %= RELATIONS
    nothing = np.empty((0, 3), np.int32)
    return Graph(
        entities=IdMap.of(pl.Series(np.arange(options.entities))),
        relations=IdMap.of(pl.Series(np.arange(RELATIONS))),
        train=triples,
        valid=nothing,
        test=nothing,
        users=np.empty(0, np.int32),
        name="random",
    )


def own_network() -> list[str]:
    """A command prefix that gives a launch its own loopback device, or nothing."""
    if not (shutil.which("unshare") and shutil.which("ip")):
        return []
    prefix = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    tried = subprocess.run([*prefix, "true"], capture_output=True)
    return prefix if tried.returncode == 0 else []


def launch(world: int) -> dict[str, Any]:
    """Run this file on so many ranks and read what they left."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        program = [__file__, *sys.argv[1:], "--worker", str(out)]
        run = [sys.executable]
        if world:
            run += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
        quiet = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run(
            [*own_network(), *run, *program], env=quiet, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        result: dict[str, Any] = json.loads(out.read_text())
        return result


def work(options: argparse.Namespace) -> None:
    """What a rank does: some steps, watched from outside."""
    from medapps.errors import Interrupted
    from medapps.train.distributed.group import joined, launched
    from medapps.train.distributed.train import Sharded
    from medapps.train.med import train_med
    from medapps.train.memory import peak_rss_bytes
    from medapps.train.process_group import SINGLE

    graph, config = graph_of(options), config_of(options)
    before = peak_rss_bytes()
    marks: list[tuple[float, int, Counter[str]]] = []

    def train(peers: Any, sent: Counter[str]) -> None:
        left = iter(range(WARM + options.steps - 1))

        def stop() -> bool:
            number = next(left, None)
            if number in (WARM - 1, None):
                marks.append((time.perf_counter(), loopback_bytes(), Counter(sent)))
            return number is None

        try:
            train_med(graph, config, stop=stop, group=peers)
        except Interrupted:
            return

    sent: list[dict[str, float]] = [{}]
    if not launched():
        train(SINGLE, Counter())
        peaks = [peak_rss_bytes()]
    else:
        with joined("cpu") as group:
            train(Sharded(group, len(graph.entities)), group.sent)
            peaks = group.gather(peak_rss_bytes())
            sent = group.gather(dict(marks[1][2] - marks[0][2]))
            if group.rank > 0:
                return
    grown = {"peak_rss_bytes": max(peaks), "above_graph": max(peaks) - before}
    seconds = (marks[1][0] - marks[0][0]) / options.steps
    counted = sum(sum(one.values()) for one in sent) / options.steps
    options.worker.write_text(
        json.dumps(
            {
                "seconds_per_step": seconds,
                "triples_per_second": config.sampling.batch / seconds,
                **grown,
                "counted_bytes_per_step": counted,
                "kernel_bytes_per_step": (marks[1][1] - marks[0][1]) / options.steps,
                "predicted_bytes_per_step": predicted(options, len(sent), options.entities),
            }
        )
    )


def loopback_bytes() -> int:
    """Bytes that went through the loopback device."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    return 0


def predicted(options: argparse.Namespace, world: int, entities: int) -> float:
    """Bytes of all ranks per step, from the ids of the measured steps."""
    config = config_of(options)
    triples = graph_of(argparse.Namespace(**vars(options) | {"entities": entities})).train
    whole = sampler_of(triples, entities, config, 0, None)
    width = config.dims[-1]
    total = 0.0
    steps = range(WARM, min(WARM + options.steps, whole.steps))
    for step in steps:
        parts = [replace(whole, part=(rank, world)).batch(0, step) for rank in range(world)]
        sizes = {"width": width, "relation_width": width}
        number = 2 if config.hardware.table == "bf16" else 4
        each = sent_bytes(parts, entities, RELATIONS, **sizes, number=number)
        total += sum(sum(one.values()) for one in each)
    return total / len(steps)


def show(result: dict[str, Any]) -> None:
    """A table for people."""
    print(json.dumps(result["environment"]))
    print("ranks  ms/step  triples/s  peak GiB  MB/step counted  predicted  kernel")
    for world, row in result["ranks"].items():
        sizes = [row[f"{way}_bytes_per_step"] / 1e6 for way in ("counted", "predicted", "kernel")]
        print(
            f"{world if world != '0' else 'none':>5}  {1000 * row['seconds_per_step']:7.1f}  "
            f"{row['triples_per_second']:9,.0f}  {row['peak_rss_bytes'] / 2**30:8.2f}  "
            + "  ".join(f"{size:9.3f}" for size in sizes)
        )
    for world, size in result["paper"].items():
        batch = result["options"]["batch"]
        print(f"7 million entities, {world} ranks: {size / batch / 1e3:.2f} kB per triple")


if __name__ == "__main__":
    main()
