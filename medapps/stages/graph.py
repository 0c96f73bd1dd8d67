"""The stage that reads a dataset, and how a graph appears in a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from medapps.errors import MedappsError
from medapps.graph.config import TableConfig
from medapps.graph.graph import Graph
from medapps.graph.tables import find_table, regular_file, table_file
from medapps.stages.runner import Runner, Stage
from medapps.store import digest_of, file_digest
from medapps.tracking import Run

if TYPE_CHECKING:
    from medapps.graph.split import PurchaseSplit
    from medapps.settings import Settings
    from medapps.train.distributed.group import Group


def graph_stage(
    runner: Runner, path: Path, settings: Settings, group: Group | None = None
) -> tuple[Graph, Path]:
    """Read a dataset into the workspace; no run of its own, it is an input of the others.

    The first process of a group reads and writes; the others then find it there.
    """
    if group is None:
        return _graph_stage(runner, path, settings)
    made = group.agree(lambda: _graph_stage(runner, path, settings) if group.rank == 0 else None)
    return group.agree(lambda: made or _graph_stage(replace(runner, force=False), path, settings))


def split_stage(runner: Runner, interactions: Path, settings: Settings) -> PurchaseSplit:
    """Split the purchases of a file once; graph and tasks start from it. It has no run."""
    from medapps.graph.split import PurchaseSplit, split_purchases

    config, columns = settings.split, settings.interactions
    digest = file_digest(regular_file(interactions))
    plain = config.plain() | {"columns": columns.plain()}
    stage = Stage("split", "split", plain, {"interactions": digest})
    if done := runner.kept(stage):
        return PurchaseSplit.load(done)
    split = split_purchases(interactions, config, columns)
    return split.save(runner.folder(stage), stage.provenance())


def _graph_stage(runner: Runner, path: Path, settings: Settings) -> tuple[Graph, Path]:
    from medapps.graph.read import graph_files, read_graph

    files = graph_files(Path(path))
    beside = (find_table(files["train"].parent, [stem]) for stem in ("labels", "interactions"))
    inputs = [*files.values(), *(file for file in beside if file)]
    config, split = settings.graph, _split_beside(runner, files["train"].parent, settings)
    parents = {file.name: file_digest(file) for file in inputs}
    if split is not None:
        parents["split"] = split.digest
    if settings.tables != TableConfig():
        parents["columns"] = digest_of(settings.tables.plain())
    stage = Stage("graph", "graph", config.plain(), parents)
    if done := runner.kept(stage):
        graph = Graph.load(done)
        if graph.source == str(files["train"].parent.resolve()):
            return graph, done
    folder = runner.folder(stage)
    graph = read_graph(path, config, split, settings.tables)
    if left := graph.notes.get("interactions_left_out"):
        runner.say(f"{left:,} purchases stay out of the graph: their ids do not fit its ids.")
    if len(graph.users) == len(graph.entities):
        runner.say(
            "Who is a user is not known: beside the graph are neither labels nor interactions, "
            f"and no name begins with {config.user_prefix!r}. Every entity counts as one."
        )
    return graph.save(folder, stage.provenance()), folder


def _split_beside(runner: Runner, folder: Path, settings: Settings) -> PurchaseSplit | None:
    """The split of the interactions beside a graph, where it takes them in."""
    wanted, file = settings.graph.interactions, find_table(folder, ["interactions"])
    if wanted == "off" or (wanted == "auto" and file is None):
        return None
    try:
        return split_stage(runner, table_file(folder, "interactions"), settings)
    except MedappsError as error:
        if wanted == "on":
            raise
        runner.say(f"No purchases are taken into the graph. {error}")
        return None


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
