"""The stage that reads a dataset, and how a graph appears in a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from medapps.graph.graph import Graph
from medapps.stages.bench import REVISION, Bench
from medapps.store import Provenance, digest_of, file_digest, stage_key
from medapps.tracking import Run

if TYPE_CHECKING:
    from medapps.graph.config import GraphConfig


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
    graph = read_graph(path, config).save(folder, Provenance(config.plain(), ours=True))
    return graph, folder


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
