"""What a task command reads when it is told little: vectors, a table beside the graph, a name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from medapps.errors import MedappsError
from medapps.graph.tables import table_file
from medapps.stages.bench import Bench
from medapps.stages.graph import graph_stage
from medapps.stages.origin import Origin
from medapps.stages.vectors import Vectors, find_vectors
from medapps.store import digest_of

if TYPE_CHECKING:
    from medapps.graph.config import GraphConfig


@dataclass(frozen=True)
class TaskInputs:
    """The vectors of a task, its table, and the name of the data set."""

    vectors: Vectors
    table: Path
    data: str


def task_inputs(
    bench: Bench,
    config: GraphConfig,
    stem: str,
    *,
    method: str,
    dim: int,
    data: Path | None = None,
    table: Path | None = None,
    embedding: Path | None = None,
    seed: int = 0,
) -> TaskInputs:
    """Vectors of `method` and the table `stem` (labels, interactions), by default the newest.

    Without vectors (`method` none) a data set needs no graph.
    """
    if method == "none" and stem == "labels":
        raise MedappsError(
            "Labels are read from vectors, so that --method none has nothing to read.",
            fix="Use --method random as a control.",
        )
    if method == "none" and data is not None:
        file = table or table_file(data, stem)
        nothing = Vectors(None, Origin("none", 0, digest_of("none"), seed))
        return TaskInputs(nothing, file, data.resolve().name)
    graph = graph_stage(bench, data, config)[0] if data is not None else None
    vectors, graph = find_vectors(
        bench.workspace, method, dim, graph=graph, embedding=embedding, seed=seed
    )
    return TaskInputs(vectors, table or table_file(Path(graph.source), stem), graph.name)
