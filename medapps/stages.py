"""Stages: each verb once, tracked, and recognised when it is already done.

A stage is named by its verb, revision, resolved config and the digests of its inputs. If the
workspace holds that folder it is loaded; otherwise the verb runs inside its own MLflow run and the
noun is saved. Commands and studies call the same functions.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.store import Workspace, digest_of, file_digest, stage_key
from medapps.tracking import NO_RUN, Run, track

if TYPE_CHECKING:
    from medapps.embed.config import MedConfig
    from medapps.embed.embedding import Embedding
    from medapps.embed.train import Progress
    from medapps.graph.config import GraphConfig

Noun = TypeVar("Noun")
REVISION = {"graph": 1, "train": 1}
"""Raised when a verb computes something else than before, so that old results are not reused."""


@dataclass(frozen=True)
class Bench:
    """Where stages are kept and tracked, and how they are carried out."""

    workspace: Workspace
    tracked: bool = True
    force: bool = False
    parent: Run = field(default=NO_RUN)
    say: Callable[[str], None] = lambda text: None
    on_run: Callable[[Run], None] = lambda run: None

    def under(self, parent: Run) -> Bench:
        """The same bench with its runs as children of a study."""
        return replace(self, parent=parent)


@dataclass(frozen=True)
class Stage:
    """One step: what it is called, what it depends on, how it appears in MLflow."""

    verb: str
    kind: str
    config: Mapping[str, Any]
    parents: Mapping[str, str]
    experiment: str
    name: str
    tags: Mapping[str, object] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return stage_key(self.verb, REVISION[self.verb], self.config, self.parents)


def carry_out(
    bench: Bench,
    stage: Stage,
    make: Callable[[Run, Path], None],
    load: Callable[[Path], Noun],
) -> tuple[Noun, Path]:
    """Load the stage's noun, or let `make(run, folder)` write it first."""
    folder = bench.workspace.folder(stage.kind, stage.key)
    if not bench.force and bench.workspace.finished(stage.kind, stage.key):
        bench.say(f"[dim]{stage.name}: done before, kept ({folder})[/]")
        return load(folder), folder
    with track(
        bench.workspace.root,
        experiment=stage.experiment,
        name=stage.name,
        params=stage.config,
        tags=stage.tags,
        parent=bench.parent,
        enabled=bench.tracked,
    ) as run:
        bench.on_run(run)
        began = time.perf_counter()
        make(run, folder)
        run.metric("stage_seconds", time.perf_counter() - began)
        run.artifact(folder / "manifest.json")
    return load(folder), folder


def graph_stage(bench: Bench, path: Path, config: GraphConfig) -> tuple[Graph, Path]:
    """Read a dataset into the workspace; no run of its own, it is an input of the others."""
    from medapps.graph.read import graph_files, read_graph
    from medapps.graph.tables import find_table

    files = graph_files(Path(path))
    beside = (find_table(files["train"].parent, [stem]) for stem in ("labels", "interactions"))
    inputs = [*files.values(), *(file for file in beside if file)]
    parents = {file.name: file_digest(file) for file in inputs}
    key = stage_key("graph", REVISION["graph"], config.plain(), parents)
    done = bench.workspace.finished("graph", key)
    if done and not bench.force:
        graph = Graph.load(done)
        if graph.source == str(files["train"].parent.resolve()):
            return graph, done
    folder = bench.workspace.folder("graph", key)
    graph = read_graph(path, config).save(folder, config=config.plain(), force=True)
    return graph, folder


def train_stage(
    bench: Bench,
    graph: Graph,
    config: MedConfig,
    *,
    seed: int = 0,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], int] | None = None,
) -> tuple[Embedding, Path]:
    """One MED training of a graph."""
    from medapps.embed.embedding import Embedding
    from medapps.embed.train import train_med

    settings = config.plain() | {"seed": seed}
    dims = ",".join(map(str, config.dims))
    stage = Stage(
        "train",
        "embedding",
        settings,
        {"graph": graph.digest},
        graph.name,
        f"med/{dims}/train/{seed}",
        {"method": "med", "task": "train", "dim": dims, "data": graph.name, "seed": seed},
    )
    checkpoints = bench.workspace.root / "checkpoints" / stage.key
    if checkpoints.exists() and not resume:
        if not bench.force:
            raise MedappsError(
                "An unfinished training with these settings was found.",
                fix="Go on with --resume, or start again with --force.",
            )
        shutil.rmtree(checkpoints)

    def make(run: Run, folder: Path) -> None:
        log_graph(run, graph)
        embedding = train_med(
            graph,
            config,
            seed=seed,
            run=run,
            checkpoint_dir=checkpoints,
            resume=resume,
            progress=progress,
            stop=stop,
        )
        embedding.save(folder, config=settings, parents=dict(stage.parents), force=True)
        shutil.rmtree(checkpoints, ignore_errors=True)

    return carry_out(bench, stage, make, Embedding.load)


def log_graph(run: Run, graph: Graph) -> None:
    """Record a graph as the input of a run."""
    import polars as pl

    sample = graph.train[:1000]
    frame = pl.DataFrame(
        {
            "head": graph.entities.names(sample[:, 0]),
            "relation": graph.relations.names(sample[:, 1]),
            "tail": graph.entities.names(sample[:, 2]),
        }
    )
    run.dataset(frame, graph.name, graph.digest or digest_of(graph.counts()), graph.source)
    run.params({"graph": graph.counts()})
