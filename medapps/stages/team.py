"""Who carries out a training: this process, or all ranks that torchrun started.

Both know the same two verbs, so that the command does not care. Of several ranks the first one
reads the data into the workspace, keeps the MLflow run and says what happens.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.stages.bench import Bench, carry_out
from medapps.stages.graph import graph_stage, log_graph
from medapps.stages.train import naming_signal, ready_checkpoints, train_stage, training_stage
from medapps.tracking import NO_RUN, Run

if TYPE_CHECKING:
    from medapps.crop.embedding import Embedding
    from medapps.graph.config import GraphConfig
    from medapps.settings import Settings
    from medapps.train.config import MedConfig
    from medapps.train.distributed.group import Group
    from medapps.train.session import Progress


class Team(Protocol):
    """Those who train together."""

    @property
    def rank(self) -> int:
        """0 for the one who speaks."""

    def graph(self, path: Path, config: GraphConfig) -> Graph:
        """Read a dataset into the workspace."""

    def train(
        self,
        graph: Graph,
        config: MedConfig,
        *,
        seed: int,
        resume: bool,
        progress: Callable[[Progress], None] | None,
        stop: Callable[[], int] | None,
    ) -> tuple[Embedding, Path]:
        """One MED training of a graph."""


@dataclass(frozen=True)
class Single:
    """This process alone."""

    bench: Bench
    rank: int = 0

    def graph(self, path: Path, config: GraphConfig) -> Graph:
        return graph_stage(self.bench, path, config)[0]

    def train(
        self,
        graph: Graph,
        config: MedConfig,
        *,
        seed: int,
        resume: bool,
        progress: Callable[[Progress], None] | None,
        stop: Callable[[], int] | None,
    ) -> tuple[Embedding, Path]:
        return train_stage(
            self.bench, graph, config, seed=seed, resume=resume, progress=progress, stop=stop
        )


@dataclass(frozen=True)
class Many:
    """All ranks of a launch."""

    bench: Bench
    group: Group

    @property
    def rank(self) -> int:
        return self.group.rank

    def graph(self, path: Path, config: GraphConfig) -> Graph:
        """The first rank reads and writes; the others then find it there."""
        calm = replace(self.bench, force=False)
        made = self.group.agree(
            lambda: graph_stage(self.bench, path, config)[0] if self.rank == 0 else None
        )
        return self.group.agree(lambda: made or graph_stage(calm, path, config)[0])

    def train(
        self,
        graph: Graph,
        config: MedConfig,
        *,
        seed: int,
        resume: bool,
        progress: Callable[[Progress], None] | None,
        stop: Callable[[], int] | None,
    ) -> tuple[Embedding, Path]:
        """As `train_stage`; started again by torchrun it goes on from the last checkpoint."""
        from medapps.crop.embedding import Embedding
        from medapps.train.distributed.group import restarts
        from medapps.train.distributed.train import check_processes, train_sharded
        from medapps.train.session import Session

        group, resume = self.group, resume or restarts() > 0
        check_processes(group, graph, config, seed, resume)
        stage = training_stage(graph, config, seed)
        folder = self.bench.workspace.folder(stage.kind, stage.key)

        def begin() -> str:
            if not self.bench.force and self.bench.workspace.finished(stage.kind, stage.key):
                return ""
            return str(ready_checkpoints(self.bench, stage, resume))

        checkpoints = group.first(begin)

        def make(run: Run, folder: Path) -> None:
            if self.rank == 0:
                log_graph(run, graph)
            with naming_signal(stop):
                train_sharded(
                    group,
                    graph,
                    config,
                    folder,
                    Session(
                        seed=seed,
                        run=run,
                        checkpoint_dir=Path(checkpoints),
                        resume=resume,
                        progress=progress,
                        stop=stop,
                    ),
                    settings=dict(stage.config),
                    parents=dict(stage.parents) | ({"run": run.id} if run.id else {}),
                )
            if self.rank == 0:
                shutil.rmtree(checkpoints, ignore_errors=True)

        if self.rank == 0:
            return carry_out(self.bench, stage, make, Embedding.load)
        if checkpoints:
            make(NO_RUN, folder)
        return Embedding.load(folder), folder


@contextmanager
def joining(bench: Bench, settings: Settings, *, distributed: bool) -> Iterator[Team]:
    """Those who train: all ranks where `distributed`, who must have been told the same."""
    if not distributed:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise MedappsError(
                "torchrun started several processes, and each would do the whole training.",
                fix="Add --distributed, or start it without torchrun.",
            )
        yield Single(bench)
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
        group.same(settings.graph.plain() | {"force": bench.force}, "config")
        yield Many(bench if group.rank == 0 else _silent(bench), group)


def _silent(bench: Bench) -> Bench:
    return replace(bench, tracked=False, say=lambda text: None, on_run=lambda run: None)
