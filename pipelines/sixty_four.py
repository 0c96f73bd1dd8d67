"""The time of all 64 sizes 10, 20, ..., 640: one MED training against a training per size.

    python pipelines/sixty_four.py DATA/fb15k-237 --config configs/rotate_fb15k237.yaml \\
        --methods dt bkd dualde --rounds 3 --plot sixty_four.png
    python pipelines/sixty_four.py DATA/fb15k-237 --scorer transe --steps 50     (a quick look)

MED with all sizes is measured over one pass of the training triples, or --steps updates, of which
the first is not counted. The others are measured at some sizes over the same updates; a straight
line through their times is summed over all sizes, and the table says so. Rounds alternate between
everything that is measured; a ratio is taken within a round and the median of the rounds is shown,
by the clock on the wall and by processor time, which other work on the machine disturbs less.
Distilled sizes are those below the teacher's, which is dt of the largest size, counted once.
Searching dt's margin and rate, validation and test are left out. Finished measurements are kept in
the workspace.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import numpy as np
from script import options, runner_of, say, settings_of, start, table

import medapps as ma
from medapps.settings import Settings
from medapps.stages import graph_stage
from medapps.store import digest_of

PAPER = {
    ("fb15k-237", "transe"): {"dt": 10.23, "bkd": 11.64},
    ("fb15k-237", "simple"): {"dt": 10.65, "bkd": 13.51},
    ("fb15k-237", "rotate"): {"dt": 10.73, "bkd": 12.48},
    ("fb15k-237", "pairre"): {"dt": 9.37, "bkd": 12.09},
    ("wn18rr", "transe"): {"dt": 9.49, "bkd": 11.73, "dualde": 19.36},
    ("wn18rr", "simple"): {"dt": 12.14, "bkd": 12.86, "dualde": 23.75},
    ("wn18rr", "rotate"): {"dt": 11.10, "bkd": 12.83, "dualde": 18.90},
    ("wn18rr", "pairre"): {"dt": 10.06, "bkd": 13.06, "dualde": 19.85},
}
"""Times MED's, as printed."""
Seconds = tuple[float, float]
"""By the clock on the wall, and of the processor."""
Times = dict[tuple[str, int], list[float]]
"""(method, dim) to seconds in every round, by one of the clocks; MED with all sizes has dim 0."""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--methods", nargs="+", choices=("dt", "bkd", "dualde"), default=["dt", "bkd", "dualde"]
    )
    parser.add_argument("--dims", type=int, nargs="+", default=list(range(10, 641, 10)))
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 160, 320, 480, 640])
    parser.add_argument("--steps", type=int, default=None, help="updates; else one pass")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=None, help="epochs; else the config's")
    given = parser.parse_args()
    runner, settings = runner_of(given), settings_of(given, given.data)
    graph, _ = graph_stage(runner, given.data, settings)
    epochs = given.epochs or settings.train.epochs
    train = one_pass(settings.train, given.dims)
    settings = settings.model_copy(update={"train": train})
    part = shortened(graph, train.sampling.batch, given.steps)
    methods = list(dict.fromkeys(["dt", *given.methods]))  # dt is the teacher of the others
    jobs = [("med", 0)]
    for method in methods:
        jobs += [(method, dim) for dim in measured_sizes(method, given.sizes, train.dims)]
    key = digest_of([graph.digest, train.plain(), settings.baseline.plain(), len(part.train)])
    notes = given.workspace / "sixty_four" / f"{key[:16]}.jsonl"
    clocks = measure(jobs, given.rounds, notes, stopwatch(part, settings))
    longer = epochs * len(graph.train) / len(part.train)  # a training than a measurement
    paper = PAPER.get((graph.name, train.scorer), {})
    rows = [row(method, clocks, train.dims, longer, paper) for method in ("med", *methods)]
    amount = f"{len(part.train):,} triples per measurement, {given.rounds} rounds"
    print(f"**{graph.name}, {train.scorer}: all {len(train.dims)} sizes** ({amount})\n")
    titles = ["method", "how", "seconds", "cpu seconds", f"cpu hours of {epochs} epochs"]
    print(table([*titles, "times MED", "times MED, cpu", "paper", "off the line"], rows))
    if given.plot:
        draw(clocks[1], f"{graph.name}, {train.scorer}", given.plot)


def one_pass(train: ma.MedConfig, dims: Sequence[int]) -> ma.MedConfig:
    """The same training for one pass with these sizes."""
    return train.resized(dims, epochs=1, patience=None)


def shortened(graph: ma.Graph, batch: int, steps: int | None) -> ma.Graph:
    """The graph with the triples of so many updates (else all), and nothing to validate on."""
    some = len(graph.train) if steps is None else min(steps * batch, len(graph.train))
    if some <= batch:
        raise ma.MedappsError(
            "The first update is not counted, and there is no other.",
            fix=f"Take more --steps, or batches smaller than {batch}: --set train.batch=N.",
        )
    kept = np.random.default_rng(0).permutation(len(graph.train))[:some]
    none = np.empty((0, 3), np.int32)
    return replace(graph, train=np.asarray(graph.train)[np.sort(kept)], valid=none, test=none)


def measured_sizes(method: str, sizes: Sequence[int], dims: Sequence[int]) -> list[int]:
    """A student is smaller than its teacher: the last but one size stands for the largest."""
    largest = dims[-1] if method == "dt" else dims[-2]
    return sorted({min(size, largest) for size in sizes})


class Ticks:
    """Asked after every update whether to stop: never, but it notes the time."""

    def __init__(self) -> None:
        self.marks: list[Seconds] = []

    def __call__(self) -> int:
        self.marks.append((perf_counter(), process_time()))
        return 0

    def of(self, first: int, steps: int) -> Seconds:
        """Seconds of `steps` updates, as those after update `first` up to the last one took."""
        begin, end = self.marks[first], self.marks[first + steps - 1]
        wall, cpu = (steps / (steps - 1) * (b - a) for a, b in zip(begin, end, strict=True))
        return wall, cpu


def stopwatch(graph: ma.Graph, settings: Settings) -> Callable[[str, int], Seconds]:
    """Measures one pass of a method at a size; making tables and indices is not counted."""
    train, baseline = settings.train, settings.baseline
    steps = -(-len(graph.train) // train.sampling.batch)
    plain = baseline.model_dump() | {"teacher_dim": train.dims[-1]}
    plain["search"]["when"], plain["dualde"]["second"] = "off", 1.0
    config = ma.BaselineConfig.model_validate(plain)
    first = replace(
        graph, train=graph.train[: train.sampling.batch]
    )  # a teacher's values cost no time
    teacher = ma.make_baseline("dt", first, train.dims[-1], config, train=train)

    def seconds(method: str, dim: int) -> Seconds:
        ticks = Ticks()
        if method == "med":
            ma.train_med(graph, train, stop=lambda: bool(ticks()))
            return ticks.of(0, steps)
        above = None if method == "dt" else teacher
        ma.make_baseline(method, graph, dim, config, train=train, teacher=above, stop=ticks)
        wall, cpu = ticks.of(0, steps)
        if method == "dualde":  # a part of a second stage, measured whole, comes on top
            share, second = baseline.dualde.second, ticks.of(steps, steps)
            wall, cpu = wall + share * second[0], cpu + share * second[1]
        return wall, cpu

    return seconds


def measure(
    jobs: Sequence[tuple[str, int]],
    rounds: int,
    notes: Path,
    seconds: Callable[[str, int], Seconds],
) -> tuple[Times, Times]:
    """Every job once per round, in turn, by both clocks; what is in the notes is kept."""
    notes.parent.mkdir(parents=True, exist_ok=True)
    found: dict[tuple[str, int], list[Seconds]] = {job: [] for job in jobs}
    for line in notes.read_text().splitlines() if notes.exists() else []:
        method, dim, wall, cpu = json.loads(line)
        found.setdefault((method, dim), []).append((wall, cpu))
    for number in range(rounds):
        for method, dim in jobs:
            if len(found[method, dim]) > number:
                continue
            wall, cpu = seconds(method, dim)
            found[method, dim].append((wall, cpu))
            say(f"round {number + 1}: {method} {dim or 'all sizes'}, {wall:.2f} s, cpu {cpu:.2f} s")
            with notes.open("a") as file:
                print(json.dumps([method, dim, wall, cpu]), file=file)
    wall_times, cpu_times = (
        {job: [pair[clock] for pair in found[job][:rounds]] for job in jobs} for clock in (0, 1)
    )
    return wall_times, cpu_times


def line(sizes: Sequence[int], seconds: Sequence[float], at: Sequence[int]) -> np.ndarray:
    """Seconds at other sizes, on the straight line through the times of some."""
    return np.polyval(np.polyfit(sizes, seconds, 1), at)


def extrapolated(sizes: Sequence[int], seconds: Sequence[float], dims: Sequence[int]) -> float:
    """The sum over `dims` of the straight line through the times of some sizes."""
    return float(line(sizes, seconds, dims).sum())


def totals(method: str, times: Times, dims: Sequence[int]) -> list[float]:
    """Seconds of one pass of all sizes, per round."""
    if method == "med":
        return times["med", 0]
    sizes, rounds = by_round(method, times)
    if method == "dt":
        return [extrapolated(sizes, values, dims) for values in rounds]
    sizes_dt, teacher = by_round("dt", times)
    return [
        extrapolated(sizes, students, dims[:-1]) + extrapolated(sizes_dt, values, dims[-1:])
        for students, values in zip(rounds, teacher, strict=True)
    ]


def by_round(method: str, times: Times) -> tuple[list[int], list[tuple[float, ...]]]:
    """The measured sizes, and their seconds in each round."""
    sizes = [dim for name, dim in times if name == method]
    return sizes, list(zip(*(times[method, dim] for dim in sizes), strict=True))


def row(
    method: str,
    clocks: tuple[Times, Times],
    dims: Sequence[int],
    longer: float,
    paper: Mapping[str, float],
) -> list[str]:
    """One method: seconds of a measurement, hours of a training, and times MED."""
    own = [totals(method, times, dims) for times in clocks]  # wall, processor
    med = [totals("med", times, dims) for times in clocks]
    ratios = [
        median(a / b for a, b in zip(*pair, strict=True)) for pair in zip(own, med, strict=True)
    ]
    how, off = f"measured, {len(dims)} sizes at once", ""
    if method != "med":
        sizes, _ = by_round(method, clocks[1])
        how, off = f"extrapolated from {len(sizes)} sizes", f"{misfit(method, clocks[1]):.0%}"
    cells = [method, how, *(f"{median(values):.1f}" for values in own)]
    cells += [f"{median(own[1]) * longer / 3600:.2f}", *(f"**{ratio:.2f}×**" for ratio in ratios)]
    return [*cells, f"{paper[method]}×" if method in paper else "", off]


def misfit(method: str, times: Times) -> float:
    """How far the line misses a measured time at most, as a part of the largest one."""
    sizes, _ = by_round(method, times)
    seconds = [median(times[method, dim]) for dim in sizes]
    return float(np.abs(line(sizes, seconds, sizes) - seconds).max() / max(seconds))


def draw(times: Times, title: str, path: Path) -> None:
    """Seconds of a measurement over sizes, with the lines; MED with all sizes as a level."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for i, method in enumerate(dict.fromkeys(name for name, dim in times if dim)):
        sizes, _ = by_round(method, times)
        seconds = [median(times[method, dim]) for dim in sizes]
        axes.plot(sizes, seconds, "o", color=f"C{i + 1}", label=f"{method}, one size")
        axes.plot(sizes, line(sizes, seconds, sizes), color=f"C{i + 1}", lw=1)
    axes.axhline(median(times["med", 0]), color="C0", label="med, all sizes at once")
    axes.set(title=title, xlabel="dim", ylabel="processor seconds", xlim=(0, None), ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    start(main)
