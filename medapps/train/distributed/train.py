"""Train together: every process its rows, the finished embedding an ordinary one.

The embedding is written by all processes into one file, each its own rows at their place, so that
`rank`, `crop`, `label` and `recommend` read it memory-mapped like any other, and no process ever
holds the whole table.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from medapps.arrays import Hole, fill
from medapps.config import flat
from medapps.crop.embedding import Embedding
from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.store import REPLACE, Provenance, disk_errors
from medapps.tracking import NO_RUN
from medapps.train.checkpoint import MACHINE
from medapps.train.config import MedConfig
from medapps.train.distributed.checkpoint import seen, writing_together
from medapps.train.distributed.group import Group
from medapps.train.distributed.sharded import Sharded
from medapps.train.med import train_med
from medapps.train.session import Session


def train_sharded(
    group: Group,
    graph: Graph,
    config: MedConfig,
    folder: Path,
    session: Session,
    *,
    provenance: Provenance = REPLACE,
) -> Embedding:
    """Train with all processes of the group and write the embedding to `folder`; called by all."""
    check_processes(group, graph, config, session.seed, session.resume)
    check_shared(group, folder.parent)
    threads = config.hardware.threads or max(1, len(os.sched_getaffinity(0)) // group.neighbours)
    group.sent.clear()
    if group.rank > 0:
        session = replace(session, run=NO_RUN, progress=None)
    shared = Sharded(group, len(graph.entities))
    part = train_med(graph, config.changed(threads=threads), session, group=shared)
    seen = group.gather([part.metrics["peak_rss_bytes"], sum(group.sent.values())])
    metrics = part.metrics | {
        "ranks": float(group.world),
        "peak_rss_bytes": max(peak for peak, _ in seen),
        "wire_bytes": sum(sent for _, sent in seen),
    }
    return save_together(group, replace(part, metrics=metrics), folder, provenance)


def check_processes(group: Group, graph: Graph, config: MedConfig, seed: int, resume: bool) -> None:
    """Refuse processes that would not train the same thing."""
    about = {"triples": len(graph.train), "entities": len(graph.entities), "digest": graph.digest}
    group.same(about, "graph")
    plain = {key: value for key, value in flat(config.plain()).items() if key not in MACHINE}
    group.same(plain | {"seed": seed, "resume": resume}, "config")
    if len(graph.entities) < group.world:
        raise MedappsError(
            f"{len(graph.entities)} entities cannot be shared by {group.world} processes.",
            fix="Give torchrun a smaller --nproc-per-node.",
        )


def check_shared(group: Group, folder: Path) -> None:
    """Refuse a folder that is not the same one on all machines."""

    def leave_mark() -> str:
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=folder, prefix=".ranks-")
        os.close(handle)
        return str(Path(name).resolve())

    group.same({"folder": str(folder.resolve())}, "workspace")
    mark = Path(group.first(leave_mark))
    try:
        group.agree(lambda: seen(mark))
    finally:
        if group.rank == 0:
            mark.unlink()


def save_together(
    group: Group, part: Embedding, folder: Path, provenance: Provenance = REPLACE
) -> Embedding:
    """Write one embedding of which every process has its rows; loads it memory-mapped."""
    rows = Sharded(group, len(part.entity_ids))
    first, _ = rows.place(len(part.entities))
    group.agree(lambda: part.refuse_broken(first))
    provenance = provenance.of(graph=part.graph_digest)
    with writing_together(group, folder, kind="embedding", provenance=provenance) as draft:
        if group.rank == 0:
            code = "BF16" if part.entities.dtype == np.uint16 else None
            shape = (rows.rows, part.entities.shape[1])
            part.write(draft, Hole(shape, part.entities.dtype.name, code))
        group.gather(None)  # the file is there

        def put() -> None:
            with disk_errors(folder):
                fill(draft.path("vectors.safetensors"), "entities", first, part.entities)

        group.agree(put)
    return group.agree(lambda: Embedding.load(folder))
