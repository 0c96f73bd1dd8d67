"""What a command means when it is not told: the newest graph of the workspace."""

from __future__ import annotations

import json
from pathlib import Path

from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.store import MANIFEST, Workspace


def newest_graph(workspace: Workspace, embedding: Path | None = None) -> Graph:
    """The graph of an embedding, by default of the newest one, else the newest graph."""
    embedding = embedding or workspace.newest("embedding")
    if embedding is not None:
        digest = json.loads((embedding / MANIFEST).read_text())["parents"]["graph"]
        for path in (workspace.root / "graphs").glob(f"*/{MANIFEST}"):
            graph = Graph.load(path.parent)
            if graph.digest == digest:
                return graph
    folder = workspace.newest("graph")
    if folder is None:
        raise MedappsError(
            f"The workspace {workspace.root} holds no graph.",
            fix="Name one with --kg PATH, or make one: medapps data synth --out DIR.",
        )
    return Graph.load(folder)
