"""Validation MRR of every size over the epochs of a training, the paper's test MRR beside it.

    python pipelines/curves.py DATA/wn18rr DATA/fb15k-237 --config configs/rotate_wn18rr.yaml \\
        configs/rotate_fb15k237.yaml configs/pairre_wn18rr.yaml --plot curves.png

A panel for each of the files and each of the data sets that its study names. Finished trainings
are read from MLflow, others are made. Test triples are never looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mlflow import MlflowClient
from script import files_of, options, runner_of, start, table, under

from medapps.errors import MedappsError
from medapps.stages import graph_stage, train_stage
from medapps.store import read_manifest
from medapps.study.plan import settings_for
from medapps.tracking import tracking_uri
from medapps.train.session import Session

DIMS = (10, 40, 160, 640)
PAPER = {
    ("transe", "wn18rr"): (0.170, 0.232, 0.236, 0.237),
    ("transe", "fb15k-237"): (0.196, 0.308, 0.320, 0.322),
    ("rotate", "wn18rr"): (0.324, 0.466, 0.471, 0.476),
    ("rotate", "fb15k-237"): (0.288, 0.318, 0.323, 0.324),
    ("pairre", "wn18rr"): (0.317, 0.433, 0.451, 0.451),
    ("pairre", "fb15k-237"): (0.239, 0.303, 0.324, 0.330),
    ("simple", "wn18rr"): (0.111, 0.385, 0.418, 0.421),
    ("simple", "fb15k-237"): (0.143, 0.261, 0.291, 0.294),
}
"""Test MRR of the paper's MED at `DIMS`."""
Curves = dict[int, dict[int, float]]
"""Size to pass to validation MRR."""


def main() -> None:
    parser = options(__doc__, many=True)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.no_track:
        raise MedappsError("Curves are read from MLflow.", fix="Leave out --no-track.")
    runner = runner_of(given)
    client = MlflowClient(tracking_uri(given.workspace))
    folders = {folder.resolve().name: folder for folder in given.data}
    panels: dict[tuple[str, str], Curves] = {}
    for whole in files_of(given):
        for item in whole.study.data:
            if item.name not in folders:
                continue
            settings = settings_for(whole, item)
            graph, _ = graph_stage(runner, folders[item.name], settings)
            config = settings.train
            _, place = train_stage(runner, graph, config, Session(given.seed, resume=True))
            run = read_manifest(place, kind="embedding").parents["run"]
            curves = {dim: history(client, run, dim) for dim in config.dims}
            panels[config.scorer, graph.name] = curves
            print(f"**{config.scorer}, {graph.name}**\n")
            print(written(curves, paper(config.scorer, graph.name)), end="\n\n")
    if given.plot:
        draw(panels, given.plot)


def history(client: MlflowClient, run: str, dim: int) -> dict[int, float]:
    """Validation MRR of one size by pass."""
    return {m.step: m.value for m in client.get_metric_history(run, f"valid_mrr_{dim}")}


def paper(scorer: str, data: str) -> dict[int, float]:
    """The paper's test MRR by size; nothing for what it does not have."""
    return dict(zip(DIMS, PAPER.get((scorer, data), ()), strict=False))


def written(curves: Curves, aims: Mapping[int, float]) -> str:
    """A row per pass, a column per size."""
    epochs = sorted({at for curve in curves.values() for at in curve})
    rows = [
        [str(at), *(f"{curve[at]:.4f}" if at in curve else "" for curve in curves.values())]
        for at in epochs
    ]
    if aims:
        rows.append(["the paper, test", *(f"{aims[d]:.3f}" if d in aims else "" for d in curves)])
    return table(["epochs", *map(str, curves)], rows)


def draw(panels: Mapping[tuple[str, str], Curves], path: Path) -> None:
    """A panel per training; the paper's test MRR as a dashed line of the same colour."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8 * len(panels), 4.4), layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, ((scorer, data), curves) in zip(all_axes, panels.items(), strict=True):
        aims = paper(scorer, data)
        for i, (dim, curve) in enumerate(curves.items()):
            axes.plot(list(curve), list(curve.values()), "o-", color=f"C{i}", label=str(dim))
            if dim in aims:
                axes.axhline(aims[dim], color=f"C{i}", linestyle="--", linewidth=1)
        ends = [curve[max(curve)] for curve in curves.values() if curve] + list(aims.values())
        axes.set(title=f"{scorer}, {data}", xlabel="epochs", ylabel="validation MRR")
        axes.set_ylim(bottom=0.85 * min(ends))  # how a training ends, not how it begins
        axes.grid(alpha=0.3)
        under(axes, title="size")
    figure.savefig(path, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    start(main)
