"""What a command means when it is told little: the newest graph, embedding or baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medapps.crop.crop import Crop, load_crop
from medapps.crop.embedding import Embedding
from medapps.errors import MedappsError
from medapps.graph.graph import Graph, content_digest
from medapps.graph.purchases import PurchaseSplit
from medapps.graph.tables import regular_file
from medapps.methods import BASELINES, CONTROLS
from medapps.stages.vectors import Vectors, control_vectors, crop_vectors
from medapps.store import Workspace, file_digest, read_manifest


def find_graph(workspace: Workspace, embedding: Path | None = None) -> Graph:
    """The graph of an embedding, by default of the newest one, else the newest graph."""
    embedding = embedding or workspace.newest("embedding")
    if embedding is not None:
        manifest = read_manifest(embedding, kind="embedding", verify_below=0)
        graph = _graph_with(workspace, manifest.parents.get("graph"))
        if graph is not None:
            return graph
    newest = workspace.newest("graph")
    if newest is None:
        raise MedappsError(
            f"The workspace {workspace.root} holds no graph.",
            fix="Name one with --kg PATH, or make one: medapps data synth --out DIR.",
        )
    return Graph.load(newest)


def graph_of(workspace: Workspace, source: Embedding | Crop) -> Graph:
    """The graph that something was trained on."""
    digest = source.manifest.parents.get("graph") if source.manifest else None
    graph = _graph_with(workspace, digest)
    if graph is None:
        raise MedappsError(
            "The graph of this embedding is not in the workspace, so its quality cannot be "
            "measured.",
            fix="Use --dim or --tier, or train it in this workspace.",
        )
    return graph


def _graph_with(workspace: Workspace, digest: str | None) -> Graph | None:
    for folder, manifest in workspace.manifests("graph"):
        if content_digest(manifest) == digest:
            return Graph.load(folder)
    return None


def find_split(workspace: Workspace, graph: Graph, interactions: Path) -> PurchaseSplit | None:
    """The split whose training purchases a graph holds, if it is one of these interactions."""
    digest = graph.manifest.parents.get("split") if graph.manifest else None
    if digest is None:
        return None
    table = file_digest(regular_file(interactions))
    for folder, manifest in workspace.manifests("split"):
        if manifest.about.get("content") == digest and manifest.parents["interactions"] == table:
            return PurchaseSplit.load(folder)
    return None


def find_source(
    workspace: Workspace,
    method: str = "med",
    dim: int | None = None,
    *,
    graph: Graph | None = None,
    embedding: Path | None = None,
) -> Embedding | Crop:
    """The embedding in a folder, else the newest; or the newest crop of a baseline."""
    if embedding is not None:
        return Embedding.load(embedding)
    if method != "med" and method not in BASELINES:
        known = ", ".join(["med", *BASELINES, *CONTROLS])
        raise MedappsError(f"There is no method {method!r}.", fix=f"Choose one of {known}.")
    of = f" of {graph.name}" if graph else ""
    kg = graph.source if graph else "PATH"
    wanted: dict[str, Any] = {"method": method}
    if method == "med":
        folder = workspace.newest(
            "embedding", **wanted | ({"graph_digest": graph.digest} if graph else {})
        )
        if folder is None:
            raise MedappsError(
                f"The workspace {workspace.root} holds no embedding{of}.",
                fix=f"Train one: medapps train --kg {kg}",
            )
        return Embedding.load(folder)
    wanted |= {"exported": None}  # not what devices got of it
    wanted |= {"graph": graph.digest} if graph else {}
    folder = workspace.newest("crop", **wanted | ({} if dim is None else {"dim": dim}))
    if folder is None:
        size = "" if dim is None else f" with dim {dim}"
        raise MedappsError(
            f"The workspace {workspace.root} holds no baseline {method!r}{of}{size}.",
            fix=f"Make it: medapps baseline {method} --dim {dim or 10} --kg {kg}",
        )
    return load_crop(folder)


def find_ranked(
    workspace: Workspace, method: str, dim: int | None, graph: Graph | None, embedding: Path | None
) -> tuple[Embedding | Crop, Graph]:
    """What can be ranked, and its graph: an embedding with all its sizes, or a baseline's crop."""
    if method in CONTROLS:
        raise MedappsError(f"The control {method} has no triples to rank.")
    if method != "med" and dim is None:
        raise MedappsError(f"{method} is made for one size.", fix="Say which: --dim 10.")
    graph = graph or find_graph(workspace, embedding)
    given = embedding if method == "med" else None
    return find_source(workspace, method, dim, graph=graph, embedding=given), graph


def find_vectors(
    workspace: Workspace, method: str, dim: int, graph: Graph, *, embedding: Path | None, seed: int
) -> Vectors:
    """The newest vectors of a method for a graph, or a control in their place."""

    def real() -> Vectors:
        source = "med" if method in CONTROLS else method
        given = embedding if source == "med" else None
        return crop_vectors(find_source(workspace, source, dim, graph=graph, embedding=given), dim)

    return control_vectors(method, dim, graph, seed, real) if method in CONTROLS else real()
