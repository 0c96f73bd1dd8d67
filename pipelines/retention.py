"""Ability retention: of the test queries that some size answers in its top ten, how many do all
larger sizes answer too?

    python pipelines/retention.py DATA/fb15k-237 --config configs/baselines_fb15k237.yaml \\
        --methods med dt ext-v pca bkd dualde --seeds 0 1 2 --plot retention.png

For MED the sizes are prefixes of one training, for a baseline its crops of the same sizes. A
student must be smaller than its teacher, so that dt of the largest size is the last link of its
chain (the table says so). Trainings and ranks are those of `medapps run` with the same file: what
the workspace has is not made again.

arr           of the queries that some size has in its top ten, the share that every larger size has
arr, triples  the same with the averaged rank of a triple's two queries
arr of all    the same retained queries as a share of all queries
trivial       the share of the queries in `arr` that only the largest size has: nothing to lose
arr, others   arr without the trivial ones
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from script import options, ranked, runner_of, settings_of, spread, start, table

import medapps as ma
from medapps.evaluate.link_prediction import ranks_of, retention
from medapps.stages import graph_stage

COLUMNS = {
    "arr": "arr",
    "arr_triple": "arr, triples",
    "arr_all": "arr of all",
    "arr_last_only": "trivial",
    "arr_others": "arr, others",
}
Figures = dict[str, list[float]]
"""One value per seed."""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--methods", nargs="+", default=["med", "dt", "ext-v", "pca", "bkd"])
    parser.add_argument("--dims", type=int, nargs="+", default=None, help="else those of MED")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int, default=None, help="test triples; else the config's")
    given = parser.parse_args()
    runner, settings = runner_of(given), settings_of(given, given.data)
    graph, _ = graph_stage(runner, given.data, settings)
    dims = sorted(given.dims or settings.train.dims)
    found: dict[str, Figures] = {}
    rows = []
    for method in given.methods:
        figures: Figures = {name: [] for name in COLUMNS}
        links: list[str] = []
        for seed in given.seeds:
            chain = ranked(runner, graph, settings, method, dims, seed, given.limit)
            if not chain:
                break
            links = [_link(report, method) for report in chain]
            for name, value in retained(chain).items():
                figures[name].append(value)
        if links:
            found[method] = figures
            cells = [spread(figures[name]) for name in COLUMNS]
            rows.append([method, ", ".join(links), *cells, str(len(given.seeds))])
    print(f"**{graph.name}, {settings.train.scorer}: ability retention**\n")
    print(table(["method", "sizes", *COLUMNS.values(), "seeds"], rows))
    if given.plot:
        draw(found, f"{graph.name}, {settings.train.scorer}", given.plot)


def retained(chain: Sequence[ma.Report]) -> dict[str, float]:
    """Retention of a chain of reports in ascending dims."""
    assert len({report.unit_digest for report in chain}) == 1, "reports of different queries"
    figures = retention(np.stack([ranks_of(report) for report in chain]))
    trivial = figures["arr_last_only"]
    others = (figures["arr"] - trivial) / (1 - trivial) if trivial < 1 else 0.0
    return {name: (figures | {"arr_others": others})[name] for name in COLUMNS}


def _link(report: ma.Report, method: str) -> str:
    return str(report.dim) if report.method == method else f"{report.dim} ({report.method})"


def draw(found: Mapping[str, Figures], title: str, path: Path) -> None:
    """Bars of arr per method with the deviation over seeds, the trivial part lighter."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.5 + 0.9 * len(found), 3.5), layout="constrained")
    axes = figure.add_subplot()
    for i, (method, figures) in enumerate(found.items()):
        arr, trivial = np.mean(figures["arr"]), np.mean(figures["arr_last_only"])
        many = len(figures["arr"]) > 1
        colour, error = f"C{i % 10}", np.std(figures["arr"], ddof=1) if many else None
        axes.bar(method, arr - trivial, color=colour)
        axes.bar(method, trivial, bottom=arr - trivial, color=colour, alpha=0.4, yerr=error)
    axes.set(title=title, ylabel="ability retention ratio", ylim=(0, 1))
    axes.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    start(main)
