"""The stage that makes a baseline's crop; teachers and earlier hops are stages of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from medapps.crop.crop import Crop, load_crop
from medapps.graph.graph import Graph
from medapps.stages.bench import Bench, Stage, carry_out
from medapps.stages.graph import log_graph
from medapps.stages.train import naming_signal
from medapps.tracking import Run

if TYPE_CHECKING:
    from medapps.baselines.config import BaselineConfig
    from medapps.embed.config import MedConfig
    from medapps.embed.train import Progress

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
"""The parts of BaselineConfig that each method depends on; the others do not make it anew."""


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
    """The crop of size `dim` that a baseline makes; its teacher is made first and shared."""
    from medapps.baselines.direct import alone
    from medapps.baselines.make import check_order, make_baseline, teacher_dim

    size = teacher_dim(config, train)
    check_order(name, dim, size)

    def earlier(method: str, other: int) -> Crop:
        return baseline_stage(
            bench, graph, method, other, config, train, seed=seed, progress=progress, stop=stop
        )[0]

    teacher = None if name == "dt" else earlier("dt", size)
    own = config.plain()
    settings = alone(train, dim).plain() | {part: own[part] for part in SECTIONS[name]}
    parents = {"graph": graph.digest}
    if teacher is not None and teacher.manifest is not None:
        parents["teacher"] = teacher.manifest.digest
    stage = Stage(
        "baseline",
        "crop",
        settings | {"method": name, "dim": dim, "seed": seed},
        parents,
        graph.name,
        f"{name}/{dim}/train/{seed}",
        {"method": name, "task": "train", "dim": dim, "data": graph.name, "seed": seed},
    )

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
                earlier=earlier,
                progress=progress,
                stop=stop,
            )
        crop.save(folder, config=dict(stage.config), parents=parents, force=True)

    return carry_out(bench, stage, make, load_crop)
