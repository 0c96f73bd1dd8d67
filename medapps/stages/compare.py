"""The stage that compares reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from medapps.comparison.gather import Found
from medapps.comparison.grid import markdown
from medapps.comparison.table import TIERS, Comparison, compare
from medapps.comparison.write import KIND, load_comparison, save_comparison
from medapps.stages.bench import REVISION, Bench
from medapps.store import Provenance, stage_key
from medapps.tracking import Run


def compare_stage(
    bench: Bench,
    found: Sequence[Found],
    open_run: Callable[[], Run],
    *,
    study: str = "",
    reference: str = "med",
    tiers: Mapping[int, str] = TIERS,
    seed: int = 0,
) -> tuple[Comparison, Path]:
    """Compare saved reports; the run that `open_run` gives gets the table and the plots."""
    parents = {one.folder.name: one.digest for one in found}
    settings = {"study": study, "reference": reference, "tiers": dict(tiers), "seed": seed}
    key = stage_key("compare", REVISION["compare"], settings, parents)
    folder = bench.workspace.folder(KIND, key)
    if not bench.force and bench.workspace.finished(KIND, key):
        return load_comparison(folder), folder
    table = compare([one.report for one in found], reference=reference, tiers=tiers, seed=seed)
    about = {"study": study, "reports": [one.folder.name for one in found]}
    save_comparison(table, folder, Provenance(parents=parents, ours=True), about)
    run = open_run()
    run.describe(markdown(table))
    for file in sorted(folder.iterdir()):
        run.artifact(file, "comparison")
    return table, folder
