"""The stage that makes a baseline; its teacher and the steps before it are stages of their own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medapps.crop.crop import Crop, load_crop
from medapps.graph.graph import Graph
from medapps.stages.bench import Bench, Stage, carry_out
from medapps.stages.graph import log_graph
from medapps.stages.train import naming_signal
from medapps.store import Provenance
from medapps.tracking import Run

if TYPE_CHECKING:
    from medapps.baselines.config import BaselineConfig
    from medapps.train.config import MedConfig
    from medapps.train.session import Progress

SECTIONS = {
    "dt": ("search",),
    "ext": (),
    "ext-l": ("ext",),
    "ext-v": (),
    "pca": (),
    "bkd": ("kd",),
    "ta": ("kd", "ta", "search"),
    "dualde": ("dualde",),
    "iterde": ("iterde",),
}
"""The sections of the config that a baseline depends on; others do not make it anew."""


def baseline_stage(
    bench: Bench,
    graph: Graph,
    name: str,
    dim: int,
    config: BaselineConfig,
    train: MedConfig,
    *,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], int] | None = None,
) -> tuple[Crop, Path]:
    """A baseline of a graph as a crop; the teacher is trained once and shared."""
    from medapps.baselines.registry import check_request, make_baseline, teacher_dim
    from medapps.baselines.search import alone
    from medapps.baselines.students import before

    size = teacher_dim(config, train)
    check_request(name, dim, size)
    once = replace(bench, force=False)  # --force makes the baseline anew, not its teacher

    def other(which: str, width: int) -> Crop:
        crop, _ = baseline_stage(
            once, graph, which, width, config, train, seed=seed, progress=progress, stop=stop
        )
        return crop

    parents, teacher = {"graph": graph.digest}, None
    if name != "dt":
        teacher = other("dt", size)
        parents["teacher"] = _digest(teacher)
    upper = before(name, dim, size)
    if upper is not None:
        parents["before"] = _digest(other(name, upper))
    plain = config.plain()
    settings: dict[str, Any] = {"method": name, "dim": dim, "seed": seed}
    settings |= {section: plain[section] for section in SECTIONS[name]}
    if name not in ("ext", "ext-v", "pca"):
        settings["train"] = alone(train, dim).plain()
    stage = Stage(
        "baseline",
        "crop",
        settings,
        parents,
        graph.name,
        f"{name}/{dim}/train/{seed}",
        {"method": name, "dim": dim, "task": "train", "data": graph.name, "seed": seed},
    )
    checkpoints = bench.workspace.root / "checkpoints" / stage.key
    if bench.force:
        shutil.rmtree(checkpoints, ignore_errors=True)

    def make(run: Run, folder: Path) -> None:
        log_graph(run, graph)
        with naming_signal(stop):
            crop = make_baseline(
                name,
                graph,
                dim,
                config,
                train=train,
                seed=seed,
                run=run,
                teacher=teacher,
                earlier=other,
                progress=progress,
                stop=stop,
                checkpoint_dir=checkpoints,
                searches=bench.workspace.root / "searches",
            )
        crop.save(folder, Provenance(settings, parents, ours=True))
        shutil.rmtree(checkpoints, ignore_errors=True)

    return carry_out(bench, stage, make, load_crop)


def _digest(crop: Crop) -> str:
    assert crop.manifest is not None
    return crop.manifest.digest
