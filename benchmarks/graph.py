"""A social graph of the paper's size: made as a stream, read from Parquet, beside a plain read.

python benchmarks/graph.py --json                     (50.8 million triples: 4 GB of disk)
python benchmarks/graph.py --triples 2000000
python benchmarks/graph.py --kg data/big/skg.parquet  (a file of your own)

Each step runs in a process of its own, so that its peak of resident memory is its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PAPER_TRIPLES, PAPER_USERS = 50_775_620, 6_974_959


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--triples", type=int, default=PAPER_TRIPLES)
    parser.add_argument("--kg", type=Path, help="read this file instead of making one")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        began = time.perf_counter()
        facts = STEPS[options.step](options)
        facts |= {
            "seconds": round(time.perf_counter() - began, 2),
            "cpu_seconds": round(time.process_time(), 2),  # all threads, imports included
            "peak_rss_bytes": peak_rss(),
        }
        print(json.dumps(facts))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        result = run(options, Path(folder))
    if options.json:
        print(json.dumps(result))
        return
    for name in ("synth", "read", "polars"):
        if name in result:
            step = result[name]
            memory = step["peak_rss_bytes"] / 2**30
            print(f"{name:7} {step['seconds']:8.1f} s", end="  ")
            print(f"({step['cpu_seconds']:.1f} s of CPU)  {memory:5.2f} GiB resident", end="  ")
            print(f"{step['triples_per_second']:12,.0f} triples/s")
    print(f"reading takes {result['times_plain_read']:.1f} times as long as polars.read_parquet")


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Every step in a fresh process."""
    result: dict[str, Any] = {"environment": environment()}
    if options.kg is None:
        result["synth"] = child("synth", folder, options.triples)
        options.kg = folder / "data" / "skg.parquet"
    result["polars"] = child("polars", folder, options.triples, options.kg)
    result["read"] = child("read", folder, options.triples, options.kg)
    for step in ("synth", "read", "polars"):
        if step in result:
            rate = result["read"]["triples"] / result[step]["seconds"]
            result[step]["triples_per_second"] = round(rate)
    plain = result["polars"]["seconds"]
    return result | {
        "triples": result["read"]["triples"],
        "entities": result["read"]["entities"],
        "times_plain_read": round(result["read"]["seconds"] / plain, 2),
    }


def child(step: str, folder: Path, triples: int, kg: Path | None = None) -> dict[str, Any]:
    command = [sys.executable, __file__, "--step", step, "--folder", str(folder)]
    command += ["--triples", str(triples), *(["--kg", str(kg)] if kg else [])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def synth(options: argparse.Namespace) -> dict[str, Any]:
    """The preset `paper`, with fewer users when fewer triples are asked for."""
    from medapps.graph.synth import synthesize

    users = round(options.triples * PAPER_USERS / PAPER_TRIPLES)
    made = synthesize(options.folder / "data", "paper", users)
    return {"users": made.users, "triples": made.triples, "interactions": made.interactions}


def read(options: argparse.Namespace) -> dict[str, Any]:
    """From Parquet to a saved and verified Graph."""
    from medapps.graph.read import read_graph
    from medapps.store import REPLACE

    began = time.perf_counter()
    graph = read_graph(options.kg)
    in_memory = time.perf_counter() - began
    saved = graph.save(options.folder / "graph", REPLACE)
    return {
        **saved.counts(),
        "read_seconds": round(in_memory, 2),
        "save_seconds": round(time.perf_counter() - began - in_memory, 2),
        "bytes": saved.manifest.bytes if saved.manifest else 0,
    }


def polars(options: argparse.Namespace) -> dict[str, Any]:
    """A plain read of the same file, for comparison: strings in memory, nothing numbered."""
    import polars as pl

    return {"triples": len(pl.read_parquet(options.kg))}


STEPS = {"synth": synth, "read": read, "polars": polars}


def peak_rss() -> int:
    """The most memory this process ever had resident, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found:
            return int(found[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def environment() -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        **{name: version(name) for name in ("medapps", "polars", "numpy")},
    }


if __name__ == "__main__":
    main()
