"""The vectors that a task reads: a method's crop, or a control that stands in for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from medapps.crop.crop import Crop, load_crop
from medapps.crop.embedding import Embedding
from medapps.crop.service import NamedVectors, Source
from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.graph.ids import IdMap
from medapps.stages.baseline import SECTIONS
from medapps.stages.newest import newest_graph
from medapps.stages.origin import Origin, origin_of
from medapps.store import Workspace, digest_of, file_digest

LATENTS = "latents.parquet"
CONTROLS = ("none", "random", "shuffled", "oracle")


@dataclass(frozen=True)
class Vectors:
    """What a task reads, and where it comes from."""

    source: Source | None
    """None for the control without vectors."""
    origin: Origin


def crop_vectors(made: Embedding | Crop, dim: int) -> Vectors:
    """The vectors of an embedding's prefix or of a crop."""
    crop = made if isinstance(made, Crop) else made.crop(dim)
    return Vectors(crop, origin_of(made, dim))


def control_vectors(
    name: str, dim: int, graph: Graph, seed: int, real: Callable[[], Vectors]
) -> Vectors:
    """No vectors, noise, vectors of somebody else, or the latents of a synthetic data set.

    `real` gives the vectors that are shuffled. Controls that do not depend on a size have dim 0.
    """
    if name == "none":
        return Vectors(None, Origin("none", 0, digest_of("none"), seed))
    if name == "oracle":
        return _oracle(Path(graph.source), seed)
    users = np.asarray(graph.users)
    names = graph.entities.names(users)
    ids = IdMap.of(names)
    rng = np.random.default_rng([seed, CONTROLS.index(name)])
    if name == "random":
        values = rng.standard_normal((len(ids), dim)).astype(np.float32)
        origin = Origin("random", dim, digest_of(["random", dim, seed, graph.digest]), seed)
        return Vectors(NamedVectors(ids, values, "random"), origin)
    source = real()
    assert source.source is not None
    values, _ = source.source.vectors(ids.names())
    digest = digest_of(["shuffled", source.origin.digest, seed])
    origin = Origin("shuffled", dim, digest, seed, source.origin.recipe)
    return Vectors(NamedVectors(ids, values[rng.permutation(len(ids))], "shuffled"), origin)


def _oracle(folder: Path, seed: int) -> Vectors:
    path = folder / LATENTS
    if not path.is_file():
        raise MedappsError(
            f"{folder} has no {LATENTS}: only synthetic data knows the truth behind it.",
            fix="Leave the oracle out, or make data with: medapps data synth --out DIR.",
        )
    frame = pl.read_parquet(path, glob=False)
    ids = IdMap.of(frame["user"])
    values = np.empty((len(ids), frame["latent"].dtype.shape[0]), np.float32)  # type: ignore[attr-defined]
    values[ids.ids(frame["user"])] = frame["latent"].to_numpy()
    origin = Origin("oracle", 0, file_digest(path), seed)
    return Vectors(NamedVectors(ids, values, "oracle"), origin)


def find_vectors(
    workspace: Workspace,
    method: str,
    dim: int,
    *,
    graph: Graph | None = None,
    embedding: Path | None = None,
    seed: int = 0,
) -> tuple[Vectors, Graph]:
    """The newest vectors of a method in the workspace, and the graph that they belong to."""
    graph = graph or newest_graph(workspace, embedding)
    if method in CONTROLS:
        real = _finder(workspace, "med", dim, graph, embedding)
        return control_vectors(method, dim, graph, seed, real), graph
    return _finder(workspace, method, dim, graph, embedding)(), graph


def _finder(
    workspace: Workspace, method: str, dim: int, graph: Graph, embedding: Path | None
) -> Callable[[], Vectors]:
    def find() -> Vectors:
        if method == "med":
            digest = {"graph_digest": graph.digest}
            folder = embedding or workspace.newest("embedding", method="med", **digest)
            if folder is None:
                raise MedappsError(
                    f"No embedding of {graph.name} was trained in {workspace.root}.",
                    fix=f"Train one: medapps train --kg {graph.source}",
                )
            return crop_vectors(Embedding.load(folder), dim)
        if method not in SECTIONS:
            known = ", ".join(["med", *SECTIONS, *CONTROLS])
            raise MedappsError(f"There is no method {method!r}.", fix=f"Choose one of {known}.")
        made = {"method": method, "dim": dim, "graph": graph.digest}
        folder = workspace.newest("crop", **made, exported=None)  # not what devices got of it
        if folder is None:
            raise MedappsError(
                f"There is no {method} of dim {dim} for {graph.name} in {workspace.root}.",
                fix=f"Make it: medapps baseline {method} --dim {dim} --kg {graph.source}",
            )
        return crop_vectors(load_crop(folder), dim)

    return find
