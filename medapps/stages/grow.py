"""The stage that grows an embedding by new triples and purchases, and the graph with it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from medapps.crop.embedding import Embedding
from medapps.graph.config import GraphConfig, InteractionsConfig, SplitConfig
from medapps.graph.graph import Graph
from medapps.graph.grow import additions, grow_graph, joined
from medapps.graph.grow import config_of as graph_config
from medapps.graph.read import graph_files, refuse_shared_names
from medapps.graph.split import PurchaseSplit, decided
from medapps.graph.tables import find_table
from medapps.stages.find import find_source, graph_of, splits_of
from medapps.stages.graph import log_graph
from medapps.stages.runner import Runner, Stage, run_stage
from medapps.stages.train import ready_checkpoints
from medapps.store import file_digest
from medapps.tracking import Run
from medapps.train.session import Session


@dataclass(frozen=True)
class Growth:
    """What comes in, and how."""

    kg: Path
    """New triples: a file, or a folder that may hold interactions too."""
    embedding: Path | None = None
    """What grows; by default the newest embedding."""
    epochs: int | None = None
    refresh: bool = False
    """Train all rows from where they are."""
    graph: Mapping[str, Any] = field(default_factory=dict)
    """Settings of reading that differ from those of the old graph."""
    train: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the training that differ from those of the embedding's."""


def grow_stage(runner: Runner, growth: Growth, session: Session) -> tuple[Embedding, Graph, Path]:
    """The grown embedding with its graph and folder."""
    from medapps.train.grow import check, config_of, grow

    parent = find_source(runner.workspace, "med", embedding=growth.embedding)
    assert isinstance(parent, Embedding) and parent.manifest is not None
    old = graph_of(runner.workspace, parent)
    graph = _graph_stage(runner, old, growth)
    if graph.digest == old.digest and not growth.refresh:
        runner.say(f"{growth.kg} holds nothing that {old.name} lacks: the embedding stays.")
        return parent, graph, _folder(runner, parent)
    config = config_of(parent).changed(**growth.train)
    check(parent, graph, config, refresh=growth.refresh)
    how: dict[str, Any] = {"epochs": growth.epochs, "refresh": growth.refresh}
    dims = ",".join(map(str, config.dims))
    stage = Stage(
        "grow",
        "embedding",
        config.plain() | {"seed": session.seed, "growth": how},
        {"graph": graph.digest, "embedding": parent.manifest.digest},
        graph.name,
        f"med/{dims}/grow/{session.seed}",
        {"method": "med", "task": "grow", "dim": dims, "data": graph.name, "seed": session.seed},
    )
    checkpoints = "" if runner.kept(stage) else ready_checkpoints(runner, stage, session.resume)

    def make(run: Run, folder: Path) -> Embedding:
        log_graph(run, graph)
        here = replace(session, run=run, checkpoint_dir=Path(checkpoints), say=runner.say)
        made = grow(parent, graph, here, config=config, **how)
        made = made.save(folder, stage.provenance(run=run.id))
        shutil.rmtree(checkpoints, ignore_errors=True)
        return made

    made, folder = run_stage(runner, stage, make, Embedding.load)
    return made, graph, folder


def _folder(runner: Runner, embedding: Embedding) -> Path:
    """Where an embedding of the workspace is kept."""
    found = runner.workspace.manifests("embedding")
    return next(folder for folder, manifest in found if manifest == embedding.manifest)


def _graph_stage(runner: Runner, old: Graph, growth: Growth) -> Graph:
    """The grown graph, with the purchases beside the new triples; the old one if nothing is new."""
    config = GraphConfig(**graph_config(old).plain() | dict(growth.graph))
    files = graph_files(growth.kg)
    folder = files["train"].parent
    bought = find_table(folder, ["interactions"]) if config.interactions != "off" else None
    inputs = [*files.values(), *([bought] if bought else [])]
    if (labels := find_table(folder, ["labels"])) is not None:
        inputs.append(labels)
    parents = {"graph": old.digest} | {file.name: file_digest(file) for file in inputs}
    before = next(splits_of(runner.workspace, old), None)
    added, whole = _purchases(bought, before)
    if whole is not None:
        parents["split"] = whole.digest
    elif before is not None:
        parents["split"] = before.digest
    stage = Stage("grow", "graph", config.plain(), parents)
    if done := runner.kept(stage):
        return Graph.load(done)
    graph = grow_graph(old, growth.kg, config, purchases=added)
    if left := graph.notes.get("interactions_left_out"):
        runner.say(f"{left:,} purchases stay out of the graph: their ids do not fit its ids.")
    elif whole is not None:
        _keep_split(runner, whole, before, bought)
    new = graph.notes["new_entities"] + graph.notes["new_triples"]
    if not new and len(graph.valid) == len(old.valid) and len(graph.test) == len(old.test):
        return old
    if count := graph.notes["new_relations"]:
        names = graph.relations.names()[-count:].head(5).to_list()
        runner.say(f"{count:,} relations are new and learned too: {', '.join(map(str, names))}.")
    return graph.save(runner.folder(stage), stage.provenance())


def _purchases(
    file: Path | None, before: PurchaseSplit | None
) -> tuple[PurchaseSplit | None, PurchaseSplit | None]:
    """The new purchases by the rules of the old ones, and all purchases as one split."""
    if file is None:
        return None, None
    stated = dict(before.manifest.config) if before is not None and before.manifest else {}
    columns = InteractionsConfig(**stated.pop("columns", {}))
    config = SplitConfig(**stated | {"core": 0})  # a few days are no core
    new = decided(file, config, columns)
    if before is None:
        return new, new
    added = additions(before, new)
    whole = joined(before, added)
    refuse_shared_names(whole)
    return added, whole


def _keep_split(
    runner: Runner, whole: PurchaseSplit, before: PurchaseSplit | None, file: Path | None
) -> None:
    """Keep the split under the file that tasks find beside the old graph, else the new one."""
    assert file is not None
    old = before.manifest if before is not None else None
    parents = {"interactions": file_digest(file)}
    if old is not None:
        parents = {"interactions": old.parents["interactions"], "added": parents["interactions"]}
        parents["split"] = str(old.about["content"])
    stage = Stage("grow", "split", dict(old.config) if old else SplitConfig().plain(), parents)
    if not runner.kept(stage):
        whole.save(runner.folder(stage), stage.provenance())
