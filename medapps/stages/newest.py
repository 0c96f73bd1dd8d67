"""What a command means when it is not told: the newest graph of the workspace."""

from __future__ import annotations

from pathlib import Path

from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.store import Workspace, read_manifest


def newest_graph(workspace: Workspace, embedding: Path | None = None) -> Graph:
    """The graph of an embedding, by default of the newest one, else the newest graph."""
    embedding = embedding or workspace.newest("embedding")
    if embedding is not None:
        manifest = read_manifest(embedding, kind="embedding", verify_below=0)
        digest = manifest.parents.get("graph")
        for folder in workspace.saved("graph"):
            graph = Graph.load(folder)
            if graph.digest == digest:
                return graph
    newest = workspace.newest("graph")
    if newest is None:
        raise MedappsError(
            f"The workspace {workspace.root} holds no graph.",
            fix="Name one with --kg PATH, or make one: medapps data synth --out DIR.",
        )
    return Graph.load(newest)
