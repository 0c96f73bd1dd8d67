"""From 0.1 to 50.8 million triples on one machine: time, memory and bytes of every command.

python benchmarks/scale.py --json                             (all sizes; 60 GB of disk, an hour)
python benchmarks/scale.py --sizes 0.1,1 --folder DIR  (a first look; keeps what it measured)
python benchmarks/scale.py --folder DIR --plot docs/scale.png

Every command runs in a process of its own, as a user would run it. What was measured is kept in
`results.json` of the folder and not measured again. A cost model is fitted to the smaller sizes and
compared with every point.
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
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

PAPER_TRIPLES, PAPER_USERS = 50_775_620, 6_974_959
SIZES = {"0.1": 100_000, "1": 1_000_000, "10": 10_000_000, "50.8": PAPER_TRIPLES}
DIMS = (10, 100, 500)
SHAPE = ("batch=1024", "chunk=1024", "negatives=64", "checkpoint_seconds=36000")
STEPS = ("synth", "check", "train", "rank", "crop")
FIGURES = ("triples_per_second", "train_seconds", "needed_bytes", "peak_rss_bytes", "loss")


def commands(folder: Path, size: str, table: str) -> dict[str, list[str]]:
    """The commands of one size, in order."""
    data = str(folder / size)
    users = round(SIZES[size] * PAPER_USERS / PAPER_TRIPLES)
    train = ["train", "--kg", data, "--dims", ",".join(map(str, DIMS)), "--epochs", "1"]
    train += ["--table", table, *(word for item in SHAPE for word in ("--set", f"train.{item}"))]
    rank = ["rank", "--split", "train", "--limit", "1000", "--candidates", "100000"]
    return {
        "synth": ["data", "synth", "--preset", "paper", "--users", str(users), "--out", data],
        "check": ["data", "check", data],
        "train": train,
        "rank": rank,
        "crop": ["crop", "--tier", "phone"],
    }


def run(words: list[str], workspace: Path) -> dict[str, Any]:
    """One command in a process of its own: what it printed, seconds, processor, memory."""
    command = [sys.executable, "-m", "medapps", *words, "--json", "--workspace", str(workspace)]
    began = perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = perf_counter() - began
        out.seek(0)
        text = out.read()
    if status:
        raise SystemExit(f"{' '.join(command)} failed: {text}")
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_rss_bytes": usage.ru_maxrss * 1024,
        "load": os.getloadavg()[0],
        "printed": json.loads(text),
    }


def measure(folder: Path, size: str, table: str) -> dict[str, Any]:
    """Every step of one size."""
    workspace = folder / f"{size}_workspace"
    point: dict[str, Any] = {"table": table}
    for step, words in commands(folder, size, table).items():
        got = run(words, workspace)
        printed = got.pop("printed")
        point[step] = got | {key: printed[key] for key in FIGURES if key in printed}
        if step == "synth":
            point |= {key: printed[key] for key in ("entities", "triples")}
        artifact = printed.get("artifact")
        if artifact and Path(artifact).is_dir():
            point[step]["bytes"] = sum(f.stat().st_size for f in Path(artifact).rglob("*"))
    shutil.rmtree(workspace)
    shutil.rmtree(folder / size)
    return point


def predicted_memory(entities: int, triples: int, table: str) -> float:
    """Bytes that training should hold at its peak, from the sizes alone."""
    row = (2 if table == "bf16" else 4) * DIMS[-1] + 4 * len(DIMS)
    base = 520 * 2**20  # the program and its libraries, as measured
    names_and_offsets = (20 + 4 + 8 + 1) * entities
    return base + row * entities + names_and_offsets + (6 + 12) * triples


def model(points: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Processor seconds = a + b triples for every step, fitted to all but the largest size.

    Relative errors are minimised, so that small sizes count as much as large ones. Processor
    seconds, because other work on the machine hardly changes them.
    """
    order = sorted(points, key=lambda size: points[size]["triples"])
    if len(order) < 3:
        return {}
    out: dict[str, Any] = {}
    for step in STEPS:
        have = [size for size in order if step in points[size]]
        if len(have) < 3:
            continue
        triples = np.array([points[size]["triples"] for size in have], float)
        seconds = np.array([points[size][step]["cpu_seconds"] for size in have])
        columns = np.stack([np.ones_like(triples), triples], 1)
        known = slice(None, -1)
        scaled = columns[known] / seconds[known, None]
        a, b = np.linalg.lstsq(scaled, np.ones(len(scaled)), rcond=None)[0]
        if b < 0:  # start-up is all there is at these sizes
            a, b = float(np.median(seconds[known])), 0.0
        errors = (a + b * triples) / seconds - 1
        out[step] = {
            "seconds": float(a),
            "microseconds_per_triple": float(1e6 * b),
            "error": dict(zip(have, errors.round(3).tolist(), strict=True)),
        }
    memory = [
        predicted_memory(p["entities"], p["triples"], p["table"]) / p["train"]["peak_rss_bytes"] - 1
        for p in (points[size] for size in order)
    ]
    out["memory_error"] = dict(zip(order, np.round(memory, 3).tolist(), strict=True))
    return out


def plot(points: dict[str, dict[str, Any]], fit: dict[str, Any], path: Path) -> None:
    """Seconds of every step and memory of training over triples, with the model as lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    time, space = figure.subplots(1, 2)
    order = sorted(points, key=lambda size: points[size]["triples"])
    x = np.array([points[size]["triples"] for size in order])
    line = np.geomspace(x[0], x[-1], 50)
    for i, step in enumerate(STEPS):
        have = [size for size in order if step in points[size]]
        seconds = [points[size][step]["cpu_seconds"] for size in have]
        time.plot([points[size]["triples"] for size in have], seconds, "o", color=f"C{i}",
                  label=step)  # fmt: skip
        if step in fit:
            slope = fit[step]["microseconds_per_triple"] / 1e6
            time.plot(line, fit[step]["seconds"] + slope * line, color=f"C{i}", lw=1)
    ratio = PAPER_USERS / PAPER_TRIPLES
    table = points[order[-1]]["table"]
    space.plot(x, [points[s]["train"]["peak_rss_bytes"] / 2**30 for s in order], "o", label="peak")
    memory = [predicted_memory(round(t * ratio), t, table) / 2**30 for t in line]
    space.plot(line, memory, lw=1, label="from the sizes")
    for axes, title in ((time, "processor seconds"), (space, f"GiB of training, table {table}")):
        axes.set(xscale="log", yscale="log", xlabel="triples", title=title)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--sizes", default=",".join(SIZES), help="million triples")
    parser.add_argument("--table", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--folder", type=Path, help="where to work and keep results")
    parser.add_argument("--plot", type=Path, help="write a picture")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"results_{options.table}.json"
    points = json.loads(kept.read_text()) if kept.exists() else {}
    for size in options.sizes.split(","):
        if size not in points:
            points[size] = measure(folder, size, options.table)
            kept.write_text(json.dumps(points, indent=1))
    fit = model(points)
    if options.plot:
        plot(points, fit, options.plot)
    result = {"machine": machine(), "dims": DIMS, "shape": SHAPE, "points": points, "model": fit}
    if options.json:
        print(json.dumps(result))
        return
    for size, point in points.items():
        parts = (f"{s} {point[s]['seconds']:.0f} s" for s in STEPS if s in point)
        print(f"{size:>5} M: {', '.join(parts)}", end="; ")
        print(f"training {point['train']['peak_rss_bytes'] / 2**30:.2f} GiB")
    print(json.dumps(fit, indent=1))


def machine() -> dict[str, Any]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cores": os.cpu_count(), "memory_bytes": pages, "python": platform.python_version()}


if __name__ == "__main__":
    main()
