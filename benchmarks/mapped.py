"""A table larger than memory: `--table mmap` within its limit beside the same table in memory.

python benchmarks/mapped.py --json     (3.2 GiB of vectors within 1 GiB; 15 GB of disk)

Each training runs in a process of its own, one epoch over the same made-up triples, and ends with
the saved embedding. `slowdown` compares triples/s of whole epochs, `slowdown_cpu`
processor seconds with making the table. Pages that were given back may
stay in the system's cache where memory is free; `--limit` caps that too, with a control group
of the system, where we may make one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np


def child(options: argparse.Namespace) -> dict[str, Any]:
    """One training; prints its figures."""
    import polars as pl

    from medapps.arrays import open_arrays, write_arrays
    from medapps.graph.graph import Graph
    from medapps.graph.ids import IdMap
    from medapps.train.config import MedConfig
    from medapps.train.med import train_med
    from medapps.train.memory import Sizes, peak_rss_bytes, plan_mapped

    file = options.folder / "triples.safetensors"
    if not file.exists():
        draws = np.random.default_rng(0)
        triples = draws.integers(0, options.entities, (options.triples, 3), np.int32)
        triples[:, 1] = draws.integers(0, 15, options.triples)
        triples = triples[np.lexsort((triples[:, 2], triples[:, 1], triples[:, 0]))]
        write_arrays(file, {"triples": triples})
        return {}
    names = IdMap.of_sorted(pl.Series(np.arange(options.entities)))
    none = np.empty((0, 3), np.int32)
    graph = Graph(
        names,
        IdMap.of_sorted(pl.Series(np.arange(15))),
        open_arrays(file)["triples"],
        none,
        none,
        none[:, 0],
        digest="made-up",
    )
    config = MedConfig.model_validate(
        {
            "dims": (10, 100, 500),
            "epochs": 1,
            "batch": 1024,
            "chunk": 1024,
            "negatives": 64,
            "table": options.step,
            "memory": options.memory if options.step == "mmap" else None,
        }
    )
    plan = {}
    if options.step == "mmap":
        sizes = Sizes(options.entities, 15, options.triples, config)
        plan = vars(plan_mapped(sizes))
    folder = options.folder / options.step
    began = process_time()
    trained = train_med(graph, config, checkpoint_dir=folder / "state")
    cpu = process_time() - began
    metrics = trained.metrics
    trained.save(folder / "saved")
    return plan | {
        "triples_per_second": metrics["triples_per_second"],
        "train_seconds": metrics["train_seconds"],
        "cpu_seconds": cpu,
        "loss": metrics["loss"],
        "peak_rss_bytes": peak_rss_bytes(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--entities", type=int, default=1_720_000)
    parser.add_argument("--triples", type=int, default=6_000_000)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--limit", action="store_true", help="cap the page cache too")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        print(json.dumps(child(options)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        options.folder = Path(name)
        launch(options, "triples")
        result: dict[str, Any] = {"table_bytes": 2000 * options.entities, "memory": options.memory}
        for step in ("fp32", "mmap"):
            result[step] = launch(options, step)
            shutil.rmtree(options.folder / step)
    speeds = (result[step]["triples_per_second"] for step in ("fp32", "mmap"))
    fast, slow = speeds
    result["slowdown"] = fast / slow
    result["slowdown_cpu"] = result["mmap"]["cpu_seconds"] / result["fp32"]["cpu_seconds"]
    print(json.dumps(result) if options.json else json.dumps(result, indent=1))


def launch(options: argparse.Namespace, step: str) -> dict[str, Any]:
    """A child process, within a control group if that was asked for."""
    command = [sys.executable, __file__, "--step", step, "--folder", str(options.folder)]
    command += ["--entities", str(options.entities), "--triples", str(options.triples)]
    command += ["--memory", options.memory]
    group = control_group(options.memory) if options.limit and step == "mmap" else None

    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    try:
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, preexec_fn=enter
        )
        out: dict[str, Any] = json.loads(done.stdout)
        if group is not None:
            peak = (group / "memory.max_usage_in_bytes").read_text()
            out["peak_with_page_cache_bytes"] = int(peak)
        return out
    finally:
        if group is not None:
            group.rmdir()


def control_group(memory: str) -> Path:
    """A memory control group (version 1) below our own, which counts the page cache as well."""
    from medapps.config import parse_bytes

    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next(line.split(":")[2] for line in lines if line.split(":")[1] == "memory")
    group = Path("/sys/fs/cgroup/memory") / own.strip("/") / f"medapps-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(parse_bytes(memory)))
    return group


if __name__ == "__main__":
    main()
