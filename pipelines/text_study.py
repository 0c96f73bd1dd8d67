"""The study on text: every method at every width on GLUE, resumable, with its table.

    python pipelines/text_study.py DATA/glue                        (all of it: hours)
    python pipelines/text_study.py DATA/glue --hours 3              (a part; the same line goes on)
    python pipelines/text_study.py DATA/glue --tasks rte --seeds 0 --set text.steps=60
    python pipelines/text_study.py DATA/glue --table docs/text.md   (when done: fills the page)

A line of JSON is appended to WORKSPACE/text_study.jsonl for every finished (task, seed, method,
width), and what is there with the same settings is skipped. A training that was cut off goes on
from its last state. --table writes what there is between the two marks of a page.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from script import runner_of, say, spread, start, table

import medapps as ma
from medapps.comparison.table import Row, compare
from medapps.config import resolve
from medapps.errors import Interrupted
from medapps.report import Report
from medapps.stages.text import Training, evaluate_stage
from medapps.store import digest_of, write_text
from medapps.text.config import METHODS, TextConfig, TextSettings
from medapps.text.data import METRICS, read_task
from medapps.text.model import find_base

TASKS = {"mrpc": (3, 5), "rte": (3, 5), "stsb": (3, 5), "cola": (3, 5), "sst2": (1, 3)}
"""Seeds and, unless text.epochs is given, epochs: two cores train the largest one once."""
MARKS = "<!-- study -->", "<!-- /study -->"
COSTS = ("parameters", "bytes", "milliseconds", "train_seconds")
Line = dict[str, Any]


def main() -> None:
    given = parsed()
    notes = given.workspace / "text_study.jsonl"
    if given.table is None:
        try:
            run(given, notes)
        except Interrupted as stopped:
            say(f"{stopped} The same command goes on from here.")
            sys.exit(128 + stopped.signal_number)
    lines = [line for name in given.tasks for line in lines_of(notes, name, settings(given, name))]
    page = shown(lines, given.workspace, given.tasks)
    if given.table is None:
        print(page)
    else:
        fill(given.table, page)
        say(f"{given.table} has the table.")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder with one folder per task")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=None)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--hours", type=float, default=None, help="stop after this time")
    parser.add_argument("--weights", type=Path, default=None, help="a BERT; else the package's")
    parser.add_argument("--config", type=Path, default=None)
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="text.KEY=V")
    parser.add_argument("--workspace", type=Path, default=Path("workspace"))
    parser.add_argument("--no-track", action="store_true")
    parser.add_argument("--table", type=Path, default=None, metavar="PAGE", help="fill, train not")
    return parser.parse_args()


def settings(given: argparse.Namespace, name: str) -> TextConfig:
    """Those of a task."""
    known = ["text.epochs=" + str(TASKS[name][1])] if name in TASKS else []
    return resolve(TextSettings, file=given.config, sets=[*known, *given.sets]).text


def run(given: argparse.Namespace, notes: Path) -> None:
    """Whatever is not in the notes, in order."""
    runner = runner_of(given)
    base = find_base(given.weights, scratch=False)
    stop = stopper(given.hours)
    for name in given.tasks:
        task, config = read_task(given.data, name), settings(given, name)
        done = {(x["seed"], x["method"], x["width"]) for x in lines_of(notes, name, config)}
        seeds = given.seeds if given.seeds is not None else range(TASKS.get(name, (1, 0))[0])
        for seed in seeds:
            for method in given.methods:
                if all((seed, method, width) in done for width in widths_of(method, config)):
                    continue
                training = Training(runner, task, base, config, seed, True, progress(), stop)
                folders = training.folders(method)
                for width in widths_of(method, config):
                    if (seed, method, width) not in done:
                        made = evaluate_stage(runner, task, folders[width], width, method)
                        note(notes, config, name, seed, *made)


def widths_of(method: str, config: TextConfig) -> tuple[int, ...]:
    """Students and cuts are narrower than the model that they come from."""
    return config.widths[:-1] if method in ("bkd", "pkd", "ext") else config.widths


def stopper(hours: float | None) -> Callable[[], int]:
    """The signal that came, if any; the end of the time counts as one."""
    caught: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: caught.append(number))
    end = time.monotonic() + 3600 * (hours if hours is not None else 1e6)
    return lambda: caught[0] if caught else int(signal.SIGTERM) * (time.monotonic() > end)


def progress() -> Callable[[int, int, float, float], None]:
    """A remark every minute."""
    told = time.monotonic()

    def tell(step: int, steps: int, loss: float, speed: float) -> None:
        nonlocal told
        if time.monotonic() - told > 60:
            told = time.monotonic()
            say(f"  update {step} of {steps}, loss {loss:.3f}, {speed:.0f} sentences/s")

    return tell


def note(
    notes: Path, config: TextConfig, name: str, seed: int, report: Report, folder: Path
) -> None:
    """Append one finished result."""
    line = {"task": name, "seed": seed, "method": report.method, "width": report.dim}
    line |= report.metrics | report.cost
    line |= {"constant": report.details["constant"], "report": folder.name, "config": key(config)}
    notes.parent.mkdir(parents=True, exist_ok=True)
    with notes.open("a") as file:
        print(json.dumps(line), file=file)


def key(config: TextConfig) -> str:
    """Names the settings; lines with other ones are left alone."""
    return digest_of(config.plain() | {"checkpoint_seconds": 0})[:12]


def lines_of(notes: Path, name: str, config: TextConfig) -> list[Line]:
    """The finished results of a task with these settings."""
    found = [json.loads(text) for text in notes.read_text().splitlines()] if notes.exists() else []
    return [x for x in found if (x["task"], x["config"]) == (name, key(config))]


def shown(lines: Sequence[Line], workspace: Path, tasks: Sequence[str]) -> str:
    """A table per task and what follows from it."""
    if not lines:
        return "No result yet."
    folders = (workspace / "reports" / line["report"] for line in lines)
    reports = [Report.load(folder) for folder in folders if folder.exists()]
    rows = compare(reports).rows if reports else ()
    against = {(row.task, row.method, row.dim, row.metric): row for row in rows}
    parts = []
    for name in tasks:
        some = [line for line in lines if line["task"] == name]
        if some:
            parts += [task_table(name, some, against), findings(name, some, against)]
    return "\n\n".join(parts)


def task_table(
    name: str, lines: Sequence[Line], against: Mapping[tuple[str, str, int, str], Row]
) -> str:
    """Every method at every width: metrics, what the pairing with MED shows, and costs."""
    metrics = metrics_in(name, lines)
    cells = []
    for width in sorted({line["width"] for line in lines}, reverse=True):
        for method in METHODS:
            some = [x for x in lines if (x["width"], x["method"]) == (width, method)]
            if some:
                row = against.get((f"text-{name}", method, width, metrics[0]))
                cost = {k: float(np.mean([x[k] for x in some])) for k in COSTS}
                cells.append(
                    [str(width), method]
                    + [spread([x[metric] for x in some], 3) for metric in metrics]
                    + [difference(row), f"{cost['parameters'] / 1e6:.2f}"]
                    + [f"{cost['bytes'] / 1e6:.1f}", f"{cost['milliseconds']:.1f}"]
                    + [f"{cost['train_seconds']:,.0f}", str(len(some))]
                )
    titles = ["width", "method", *metrics, "against med", "parameters (M)", "MB"]
    titles += ["ms / sentence", "training s", "seeds"]
    constant = f"a constant guess has {metrics[0]} {lines[0]['constant']:.3f}"
    return f"**{name}** ({constant})\n\n{table(titles, cells)}"


def metrics_in(name: str, lines: Sequence[Line]) -> tuple[str, ...]:
    """The metrics of a task, the most telling first."""
    known = ("mcc", "f1", "f1_macro", "pearson", "spearman", "accuracy")
    return METRICS.get(name) or tuple(metric for metric in known if metric in lines[0])


def difference(row: Row | None) -> str:
    """What the paired comparison with MED shows."""
    if row is None or row.difference is None:
        return ""
    return f"{row.difference:+.3f} [{row.difference_low:+.3f}, {row.difference_high:+.3f}] " + (
        row.verdict or ""
    )


def findings(
    name: str, lines: Sequence[Line], against: Mapping[tuple[str, str, int, str], Row]
) -> str:
    """MED against HAT at every width, and its full width against the model trained alone."""
    metric = metrics_in(name, lines)[0]
    mean: dict[tuple[str, int], float] = {}
    for pair in {(line["method"], line["width"]) for line in lines}:
        mean[pair] = float(np.mean([x[metric] for x in lines if (x["method"], x["width"]) == pair]))
    said = []
    for width in sorted({width for _, width in mean}, reverse=True):
        if ("med", width) in mean and ("hat", width) in mean:
            gap = mean["med", width] - mean["hat", width]
            row = against.get((f"text-{name}", "hat", width, metric))
            shown = row is not None and row.verdict in ("better", "worse")
            said.append(f"{width}: {100 * gap:+.1f}" + (" (shown)" if shown else ""))
    text = f"MED minus HAT in points of {metric}, by width: {', '.join(said)}." if said else ""
    full = max(width for _, width in mean)
    if ("med", full) in mean and ("dt", full) in mean:
        gap = 100 * (mean["med", full] - mean["dt", full])
        text += f" Full width, MED minus the model fine-tuned alone: {gap:+.1f}."
    return text.strip()


def fill(page: Path, text: str) -> None:
    """Replace what is between the marks."""
    whole = page.read_text()
    if not all(whole.count(mark) == 1 for mark in MARKS):
        raise ma.MedappsError(f"{page} lacks the marks {' and '.join(MARKS)}.")
    before, rest = whole.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    write_text(page, f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}")


if __name__ == "__main__":
    start(main)
