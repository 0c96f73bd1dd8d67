"""The stage that makes a baseline; its teacher and the steps before it are stages of their own."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medapps.crop.crop import Crop, load_crop
from medapps.graph.graph import Graph
from medapps.methods import BASELINES
from medapps.stages.graph import log_graph
from medapps.stages.runner import Runner, Stage, run_stage
from medapps.tracking import Run
from medapps.train.session import Session

if TYPE_CHECKING:
    from medapps.baselines.config import BaselineConfig
    from medapps.train.config import MedConfig


@dataclass(frozen=True)
class Baseline:
    """A baseline that is asked for: its name and size, and the settings that it depends on."""

    name: str
    dim: int
    config: BaselineConfig
    train: MedConfig

    def stage(self, graph: Graph, seed: int, parents: dict[str, str]) -> Stage:
        """What making it is called."""
        from medapps.baselines.direct import alone

        plain = self.config.plain()
        settings: dict[str, Any] = {"method": self.name, "dim": self.dim, "seed": seed}
        settings |= {section: plain[section] for section in BASELINES[self.name]}
        if self.name not in ("ext", "ext-v", "pca"):
            settings["train"] = alone(self.train, self.dim).plain()
        return Stage(
            "baseline",
            "crop",
            settings,
            {"graph": graph.digest} | parents,
            graph.name,
            f"{self.name}/{self.dim}/train/{seed}",
            {
                "method": self.name,
                "dim": self.dim,
                "task": "train",
                "data": graph.name,
                "seed": seed,
            },
        )


def baseline_stage(
    runner: Runner, graph: Graph, asked: Baseline, session: Session
) -> tuple[Crop, Path]:
    """A baseline of a graph as a crop; the teacher is trained once and shared."""
    from medapps.baselines.registry import check_request, make_baseline, teacher_dim
    from medapps.baselines.students import before

    name, dim, config, train = asked.name, asked.dim, asked.config, asked.train
    size = teacher_dim(config, train)
    check_request(name, dim, size)
    calm = replace(runner, force=False)  # --force makes the baseline anew, not its teacher

    def other(which: str, width: int) -> Crop:
        return baseline_stage(calm, graph, replace(asked, name=which, dim=width), session)[0]

    teacher, parents = None, {}
    if name != "dt":
        teacher = other("dt", size)
        parents["teacher"] = _digest(teacher)
    upper = before(name, dim, size)
    if upper is not None:
        parents["before"] = _digest(other(name, upper))
    stage = asked.stage(graph, session.seed, parents)
    checkpoints = runner.checkpoints(stage)
    if runner.force:
        shutil.rmtree(checkpoints, ignore_errors=True)

    def make(run: Run, folder: Path) -> Crop:
        log_graph(run, graph)
        crop = make_baseline(
            name,
            graph,
            dim,
            config,
            train=train,
            teacher=teacher,
            earlier=other,
            session=replace(
                session,
                run=run,
                checkpoint_dir=checkpoints,
                searches=runner.workspace.root / "searches",
            ),
        )
        saved = crop.save(folder, stage.provenance())
        shutil.rmtree(checkpoints, ignore_errors=True)
        return saved

    return run_stage(runner, stage, make, load_crop)


def _digest(crop: Crop) -> str:
    assert crop.manifest is not None
    return crop.manifest.digest
