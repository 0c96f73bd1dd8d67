"""The stage that compares reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from medapps.comparison.gather import Found
from medapps.comparison.grid import markdown
from medapps.comparison.table import TIER_OF, Comparison, compare
from medapps.comparison.write import KIND, load_comparison, save_comparison
from medapps.stages.runner import Runner, Stage


def compare_stage(
    runner: Runner,
    found: Sequence[Found],
    *,
    study: str = "",
    reference: str = "med",
    tiers: Mapping[int, str] = TIER_OF,
    seed: int = 0,
) -> tuple[Comparison, Path]:
    """Compare saved reports; the study's run, else one of its own, gets the table and the plots."""
    parents = {one.folder.name: one.digest for one in found}
    settings = {"study": study, "reference": reference, "tiers": dict(tiers), "seed": seed}
    data = sorted({one.report.data for one in found})
    experiment = data[0] if len(data) == 1 else "comparison"
    stage = Stage("compare", KIND, settings, parents, experiment, "compare")
    if done := runner.kept(stage):
        return load_comparison(done), done
    folder = runner.folder(stage)
    table = compare([one.report for one in found], reference=reference, tiers=tiers, seed=seed)
    about = {"study": study, "reports": [one.folder.name for one in found]}
    save_comparison(table, folder, stage.provenance(), about)
    with nullcontext(runner.parent()) if study else runner.run(stage) as run:
        run.describe(markdown(table))
        for file in sorted(folder.iterdir()):
            run.artifact(file, "comparison")
    return table, folder
