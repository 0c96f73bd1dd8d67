"""The stages that train, each with its checkpoints: MED, in one process or in a group of them, and
the baselines, whose teachers and earlier steps are stages of their own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medapps.crop.crop import Crop, load_crop
from medapps.crop.embedding import Embedding
from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.methods import BASELINES
from medapps.stages.graph import log_graph
from medapps.stages.runner import Runner, Stage, run_stage
from medapps.tracking import NO_RUN, Run
from medapps.train.session import Session

if TYPE_CHECKING:
    from medapps.baselines.config import BaselineConfig
    from medapps.settings import Settings
    from medapps.train.config import MedConfig
    from medapps.train.distributed.group import Group


def train_stage(
    runner: Runner, graph: Graph, config: MedConfig, session: Session, group: Group | None = None
) -> tuple[Embedding, Path]:
    """One MED training of a graph; all processes of a group call it."""
    from medapps.train.step import pick_device

    pick_device(config.hardware.device)  # refused before a run is opened
    stage = _training(graph, config, session.seed)
    if group is not None:
        session = _agreed(group, graph, config, session)
    first = group is None or group.rank == 0

    def ready() -> str:
        return "" if runner.kept(stage) else str(ready_checkpoints(runner, stage, session.resume))

    checkpoints = ready() if group is None else group.first(ready)

    def make(run: Run, folder: Path) -> Embedding:
        if first:
            log_graph(run, graph)
        provenance = stage.provenance(run=run.id)
        here = replace(session, run=run, checkpoint_dir=Path(checkpoints), say=runner.say)
        if group is None:
            from medapps.train.med import train_med

            made = train_med(graph, config, here).save(folder, provenance)
        else:
            from medapps.train.distributed.train import train_sharded

            made = train_sharded(group, graph, config, folder, here, provenance=provenance)
        if first:
            shutil.rmtree(checkpoints, ignore_errors=True)
        return made

    if first:
        return run_stage(runner, stage, make, Embedding.load)
    folder = runner.folder(stage)
    return make(NO_RUN, folder) if checkpoints else Embedding.load(folder), folder


def _training(graph: Graph, config: MedConfig, seed: int) -> Stage:
    dims = ",".join(map(str, config.dims))
    return Stage(
        "train",
        "embedding",
        config.plain() | {"seed": seed},
        {"graph": graph.digest},
        graph.name,
        f"med/{dims}/train/{seed}",
        {"method": "med", "task": "train", "dim": dims, "data": graph.name, "seed": seed},
    )


def _agreed(group: Group, graph: Graph, config: MedConfig, session: Session) -> Session:
    """Refuse processes that would train different things; one started again is resumed."""
    from medapps.train.distributed.group import restarts
    from medapps.train.distributed.train import check_processes

    session = replace(session, resume=session.resume or restarts() > 0)
    check_processes(group, graph, config, session.seed, session.resume)
    return session


def ready_checkpoints(runner: Runner, stage: Stage, resume: bool) -> Path:
    """Where the state of a training is kept; refuses to lose an unfinished one unasked."""
    folder = runner.checkpoints(stage)
    if folder.exists() and not resume:
        if not runner.force:
            raise MedappsError(
                "An unfinished training with these settings was found.",
                fix="Go on with --resume, or start again with --force.",
            )
        shutil.rmtree(folder)
    return folder


@contextmanager
def process_group(
    runner: Runner, settings: Settings, *, distributed: bool
) -> Iterator[Group | None]:
    """The processes that torchrun started, who must have been told the same; None for one alone."""
    if not distributed:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise MedappsError(
                "torchrun started several processes, and each would do the whole training.",
                fix="Add --distributed, or start it without torchrun.",
            )
        yield None
        return
    try:
        from medapps.train.distributed import train  # noqa: F401  (all that it needs of torch)
        from medapps.train.distributed.group import joined
    except ImportError as error:
        raise MedappsError(
            f"This torch lacks something that --distributed needs: {error}.",
            fix="Install the versions of constraints.txt (torch 2.13).",
        ) from error
    with joined(settings.train.hardware.device) as group:
        group.same(settings.graph.plain() | {"force": runner.force}, "config")
        yield group


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
    from medapps.baselines.registry import (
        check_possible,
        check_request,
        make_baseline,
        teacher_dim,
    )
    from medapps.baselines.request import BaselineRequest
    from medapps.baselines.students import before

    name, dim, config, train = asked.name, asked.dim, asked.config, asked.train
    size = teacher_dim(config, train)
    check_request(name, dim, size)
    check_possible(BaselineRequest(name, graph, dim, config, train, session), size)
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
                say=runner.say,
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
