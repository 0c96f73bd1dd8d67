"""Parameter efficiency: MRR per million parameters at every size of one training.

    python pipelines/efficiency.py DATA/fb15k-237 DATA/wn18rr DATA/codex-m DATA/yago3-10-quarter \\
        --config configs/rotate_fb15k237.yaml configs/rotate_wn18rr.yaml \\
        configs/rotate_codex_yago.yaml --seeds 0 --plot efficiency.png

Effi divides by millions of parameters rounded to one decimal, as the paper prints them; the exact
value stands beside it. Parameters are those of the crop: its entities and its relations. CoDEx-M
and a quarter of YAGO3-10 are not the paper's CoDEx-L and YAGO3-10: other graphs, and fewer training
triples, so that rows of the paper stand there for orientation only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from script import options, ranked, runner_of, settings_of, spread, start, table, under

import medapps as ma
from medapps.stages import graph_stage

TITLES = {
    "fb15k-237": ("FB15k-237", "FB15k-237"),
    "wn18rr": ("WN18RR", "WN18RR"),
    "codex-m": ("CoDEx-M, not CoDEx-L", "CoDEx-L"),
    "yago3-10-quarter": ("a quarter of YAGO3-10", "YAGO3-10"),
}
"""Folder to the name of what is in it, and of what the paper has in its place."""
MODELS = ("RotatE, large", "RotatE, small", "NodePiece", "EARL", "MED")
PAPER: dict[str, list[tuple[int, float, float, float, float]]] = {
    "FB15k-237": [
        (1000, 29.3, 0.336, 0.532, 0.011),
        (100, 2.9, 0.296, 0.473, 0.102),
        (100, 3.2, 0.256, 0.420, 0.080),
        (150, 1.8, 0.310, 0.501, 0.172),
        (40, 1.2, 0.318, 0.504, 0.265),
    ],
    "WN18RR": [
        (500, 40.6, 0.508, 0.612, 0.013),
        (50, 4.1, 0.411, 0.429, 0.100),
        (100, 4.4, 0.403, 0.515, 0.092),
        (200, 3.8, 0.440, 0.527, 0.116),
        (40, 3.2, 0.466, 0.561, 0.146),
    ],
    "CoDEx-L": [
        (500, 78.0, 0.258, 0.387, 0.003),
        (25, 3.8, 0.196, 0.322, 0.052),
        (100, 3.6, 0.190, 0.313, 0.053),
        (100, 2.1, 0.238, 0.390, 0.113),
        (20, 3.1, 0.243, 0.385, 0.078),
    ],
    "YAGO3-10": [
        (500, 123.2, 0.495, 0.670, 0.004),
        (20, 4.8, 0.121, 0.262, 0.025),
        (100, 4.1, 0.247, 0.488, 0.060),
        (100, 3.0, 0.302, 0.498, 0.101),
        (20, 4.9, 0.313, 0.528, 0.064),
    ],
}
"""Per model: dim, millions of parameters, MRR, Hit@10, Effi, as printed."""
COLUMNS = ["model", "dim", "parameters, M", "MRR", "Hit@10", "Effi", "Effi, exact"]


def main() -> None:
    parser = options(__doc__, many=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int, default=None, help="test triples; else the config's")
    given = parser.parse_args()
    runner = runner_of(given)
    found: dict[str, list[list[ma.Report]]] = {}
    for data in given.data:
        settings = settings_of(given, data)
        graph, _ = graph_stage(runner, data, settings)
        trainings = [
            ranked(runner, graph, settings, "med", settings.train.dims, seed, given.limit)
            for seed in given.seeds
        ]
        found[graph.name] = [list(sizes) for sizes in zip(*trainings, strict=True)]
        title, theirs = TITLES.get(graph.name, (graph.name, ""))
        model = f"MED, {settings.train.scorer}"
        print(f"**{title}**, seeds: {len(given.seeds)}\n")
        rows = [own_row(model, reports) for reports in found[graph.name]]
        print(table(COLUMNS, rows + paper_rows(theirs)), end="\n\n")
    if given.plot:
        draw(found, given.plot)


def own_row(model: str, reports: Sequence[ma.Report]) -> list[str]:
    """One size, as the mean over its trainings."""
    values = {name: [r.metrics[name] for r in reports] for name in reports[0].metrics}
    cells = [model, str(reports[0].dim), f"{values['parameters'][0] / 1e6:.3f}"]
    cells += [spread(values[name]) for name in ("mrr", "hits_at_10")]
    return cells + [f"{np.mean(values[name]):.3f}" for name in ("effi", "effi_exact")]


def paper_rows(data: str) -> list[list[str]]:
    """What the paper prints for a data set of this name."""
    rows = []
    for model, numbers in zip(MODELS, PAPER.get(data, []), strict=False):
        dim, millions, mrr, hits, effi = numbers
        name = f"the paper's {model} ({data})"
        rows.append([name, str(dim), f"{millions}", f"{mrr:.3f}", f"{hits:.3f}", f"{effi:.3f}", ""])
    return rows


def draw(found: Mapping[str, Sequence[Sequence[ma.Report]]], path: Path) -> None:
    """MRR over parameters, a panel per data set, with the paper's models as crosses."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(found), 3.6), layout="constrained")
    for axes, (data, sizes) in zip(
        figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True
    ):
        title, theirs = TITLES.get(data, (data, ""))
        millions = [reports[0].metrics["parameters"] / 1e6 for reports in sizes]
        mrr = [float(np.mean([r.metrics["mrr"] for r in reports])) for reports in sizes]
        axes.plot(millions, mrr, "o-", label="MED, one training")
        for at, value, reports in zip(millions, mrr, sizes, strict=True):
            axes.annotate(str(reports[0].dim), (at, value), (4, -10), textcoords="offset points")
        for i, (model, row) in enumerate(zip(MODELS, PAPER.get(theirs, []), strict=False)):
            axes.plot(row[1], row[2], "x", color=f"C{i + 1}", label=f"paper: {model}, {row[0]}")
        against = f"\n(paper: {theirs})" if theirs and theirs != title else ""
        axes.set(title=title + against, xscale="log", xlabel="million parameters", ylabel="MRR")
        axes.grid(alpha=0.3)
        under(axes)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    start(main)
