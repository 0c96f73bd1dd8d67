"""The stage that trains an embedding, with its checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from medapps.errors import Interrupted, MedappsError
from medapps.graph.graph import Graph
from medapps.stages.bench import Bench, Stage, carry_out
from medapps.stages.graph import log_graph
from medapps.store import Provenance
from medapps.tracking import Run

if TYPE_CHECKING:
    from medapps.crop.embedding import Embedding
    from medapps.train.config import MedConfig
    from medapps.train.session import Progress


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
    from medapps.crop.embedding import Embedding
    from medapps.train.med import train_med

    stage = training_stage(graph, config, seed)
    checkpoints = ready_checkpoints(bench, stage, resume)

    def make(run: Run, folder: Path) -> None:
        log_graph(run, graph)
        with naming_signal(stop):
            embedding = train_med(
                graph,
                config,
                seed=seed,
                run=run,
                checkpoint_dir=checkpoints,
                resume=resume,
                progress=progress,
                stop=None if stop is None else lambda: bool(stop()),
                say=bench.say,
            )
        settings = dict(stage.config)
        parents = dict(stage.parents) | ({"run": run.id} if run.id else {})
        embedding.save(folder, Provenance(settings, parents, ours=True))
        shutil.rmtree(checkpoints, ignore_errors=True)

    return carry_out(bench, stage, make, Embedding.load)


def training_stage(graph: Graph, config: MedConfig, seed: int) -> Stage:
    """What a MED training of a graph is called, whoever carries it out."""
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


def ready_checkpoints(bench: Bench, stage: Stage, resume: bool) -> Path:
    """Where the state of a training is kept; refuses to lose an unfinished one unasked."""
    checkpoints = bench.workspace.root / "checkpoints" / stage.key
    if checkpoints.exists() and not resume:
        if not bench.force:
            raise MedappsError(
                "An unfinished training with these settings was found.",
                fix="Go on with --resume, or start again with --force.",
            )
        shutil.rmtree(checkpoints)
    return checkpoints


@contextmanager
def naming_signal(stop: Callable[[], int] | None) -> Iterator[None]:
    """Tell an interruption which signal caused it, for the exit code."""
    try:
        yield
    except Interrupted as error:
        number = stop() if stop else 0
        raise Interrupted(str(error), number or error.signal_number) from error
