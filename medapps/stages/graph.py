"""The stage that reads a dataset, and how a graph appears in a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from medapps.graph.graph import Graph
from medapps.stages.runner import Runner, Stage
from medapps.store import digest_of, file_digest
from medapps.tracking import Run

if TYPE_CHECKING:
    from medapps.graph.config import GraphConfig
    from medapps.train.distributed.group import Group


def graph_stage(
    runner: Runner, path: Path, config: GraphConfig, group: Group | None = None
) -> tuple[Graph, Path]:
    """Read a dataset into the workspace; no run of its own, it is an input of the others.

    The first process of a group reads and writes; the others then find it there.
    """
    if group is None:
        return _graph_stage(runner, path, config)
    made = group.agree(lambda: _graph_stage(runner, path, config) if group.rank == 0 else None)
    return group.agree(lambda: made or _graph_stage(replace(runner, force=False), path, config))


def _graph_stage(runner: Runner, path: Path, config: GraphConfig) -> tuple[Graph, Path]:
    from medapps.graph.read import graph_files, read_graph
    from medapps.graph.tables import find_table

    files = graph_files(Path(path))
    beside = (find_table(files["train"].parent, [stem]) for stem in ("labels", "interactions"))
    inputs = [*files.values(), *(file for file in beside if file)]
    stage = Stage(
        "graph", "graph", config.plain(), {file.name: file_digest(file) for file in inputs}
    )
    if done := runner.kept(stage):
        graph = Graph.load(done)
        if graph.source == str(files["train"].parent.resolve()):
            return graph, done
    folder = runner.folder(stage)
    return read_graph(path, config).save(folder, stage.provenance()), folder


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
