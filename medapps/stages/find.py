"""What a command means when it is told little: the newest graph, embedding or baseline; and the
vectors that a task reads, with who made them at which cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from medapps.crop.crop import Crop, load_crop
from medapps.crop.embedding import Embedding
from medapps.crop.export import crop_bytes
from medapps.crop.service import NamedVectors, Source, UserVectors, control, user_vectors
from medapps.errors import MedappsError
from medapps.graph.graph import Graph, content_digest
from medapps.graph.ids import IdMap
from medapps.graph.split import PurchaseSplit
from medapps.graph.tables import regular_file
from medapps.methods import BASELINES, CONTROLS
from medapps.report import Report
from medapps.store import Workspace, digest_of, file_digest, read_manifest

if TYPE_CHECKING:
    from medapps.train.config import MedConfig

LATENTS = "latents.parquet"


@dataclass(frozen=True)
class Origin:
    """The maker of some vectors."""

    method: str
    dim: int
    digest: str
    seed: int = 0
    """Seed of the training."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the training without the seed: equal ones are trainings of the same thing."""
    cost: Mapping[str, float] = field(default_factory=dict)
    """train_seconds, teachers included, and bytes on the device."""
    budget: Mapping[str, Any] = field(default_factory=dict)
    """epochs, triples_seen and the digest of the graph, as far as they are known."""

    def tags(self, task: str, data: str) -> dict[str, object]:
        """How runs of a task on these vectors are found."""
        return {
            "method": self.method,
            "dim": self.dim,
            "task": task,
            "data": data,
            "seed": self.seed,
        }

    def mark(self, report: Report, options: Mapping[str, Any]) -> Report:
        """The report with what a comparison must know: cost, training and recipe."""
        recipe = [dict(self.recipe), dict(options)]
        marks = {"training": self.seed, "recipe": digest_of(recipe)[:16]}
        seconds = report.cost.get("train_seconds", 0.0) if report.task != "rank" else 0.0
        return replace(
            report,
            method=self.method,
            dim=self.dim,
            cost={"task_seconds": seconds} | dict(self.cost),
            details=report.details | marks | dict(self.budget),
        )


def origin_of(source: Embedding | Crop, dim: int) -> Origin:
    """The origin of an embedding's prefix or of a crop, as far as its manifest tells."""
    crop = source if isinstance(source, Crop) else source.crop(dim)
    manifest = source.manifest
    settings = dict(manifest.config) if manifest else {}
    seed = int(settings.pop("seed", crop.about.get("seed", 0)))
    digest = manifest.digest if manifest else ""
    return Origin(
        method=crop.method,
        dim=dim,
        digest=digest_of([digest, dim, settings]),  # two recipes may yield the same vectors
        seed=seed,
        recipe=settings,
        cost={
            "train_seconds": float(crop.about.get("train_seconds", 0.0)),
            "bytes": float(crop_bytes(crop, "float32")),
        },
        budget={
            key: crop.about[key] for key in ("epochs", "triples_seen", "graph") if key in crop.about
        },
    )


@dataclass(frozen=True)
class Vectors:
    """What a task reads, and where it comes from."""

    source: Source | None
    """None for the control without vectors."""
    origin: Origin


def no_vectors(method: str = "none", seed: int = 0) -> Vectors:
    """Nothing to read: the control `none`, or a recommender that uses no graph."""
    return Vectors(None, Origin(method, 0, digest_of(method), seed))


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
        return no_vectors(seed=seed)
    if name == "oracle":
        return _oracle(Path(graph.source), seed)
    ids = IdMap.of(graph.entities.names(np.asarray(graph.users)))
    if name == "random":
        everyone = np.ones(len(ids), bool)
        users = UserVectors(np.zeros((len(ids), dim), np.float32), everyone, dim, name)
        origin = Origin(name, dim, digest_of([name, dim, seed, graph.digest]), seed)
    else:
        given = real()
        assert given.source is not None
        digest = digest_of([name, given.origin.digest, seed])
        origin = Origin(name, dim, digest, seed, given.origin.recipe)
        if isinstance(given.source, Crop):
            return Vectors(_exchanged(given.source, seed), origin)
        users = user_vectors(given.source, ids)
    return Vectors(NamedVectors(ids, control(name, users, seed).values, name), origin)


def _exchanged(crop: Crop, seed: int) -> Crop:
    """The crop with the vectors of its users exchanged among them, items as they are."""
    entities = crop.rows(slice(None)).copy()
    rows = np.asarray(crop.users)
    entities[rows] = entities[np.random.default_rng([seed, 2]).permutation(rows)]
    return replace(crop, entities=entities, scale=None, method="shuffled")


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
    return Vectors(
        NamedVectors(ids, values, "oracle"), Origin("oracle", 0, file_digest(path), seed)
    )


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


def trained_as(
    workspace: Workspace, graph: Graph, given: MedConfig, embedding: Path | None
) -> tuple[Path, dict[str, Any]] | None:
    """The embedding that a baseline of a graph is compared with, by default the newest, and the
    settings of its training, as far as they make sense beside those that are `given`.
    """
    from medapps.train.config import MedConfig

    wanted = {"method": "med", "graph_digest": graph.digest}
    folder = embedding or workspace.newest("embedding", **wanted)
    if folder is None:
        return None
    manifest = read_manifest(folder, kind="embedding", verify_below=0)
    if manifest.parents.get("graph") != graph.digest:
        raise MedappsError(
            f"{folder} was not trained on the graph {graph.name} as it is now.",
            fix="Leave --kg out, or name an embedding of this graph.",
        )
    trained = MedConfig(**{k: v for k, v in manifest.config.items() if k != "seed"})
    if "dims" in given.model_fields_set:
        trained = trained.resized(given.dims)
    values = trained.plain()
    if "scorer" in given.model_fields_set and given.scorer != trained.scorer:
        for key in ("scorer", "norm", "loss", "optimiser"):  # another scorer likes others
            del values[key]
    return folder, values


HOLD_OUT = "train with --set train.patience=5 --set train.fraction=0.05, which holds some out."


def held_out(graph: Graph, source: Embedding | Crop) -> np.ndarray:
    """The triples that a training held out where the graph has none to validate, (n, 3)."""
    manifest = None if isinstance(source, Crop) else source.manifest
    if len(graph.valid) or manifest is None or not manifest.config:
        return np.empty((0, 3), np.int32)
    from medapps.train.config import MedConfig
    from medapps.train.order import split_validation

    settings = dict(manifest.config)
    seed = int(settings.pop("seed", 0))
    return split_validation(graph, MedConfig(**settings), seed)[1]


def ranked_split(graph: Graph, source: Embedding | Crop) -> tuple[Graph, str]:
    """The split to rank where none is named: test, else validation, else what the training held
    out, which then stands in the place of the graph's validation triples.
    """
    for name in ("test", "valid"):
        if len(getattr(graph, name)):
            return graph, name
    found = held_out(graph, source)
    if len(found):
        return replace(graph, valid=found), "valid"
    raise MedappsError(
        f"There is nothing to rank: {graph.name} has neither test nor validation triples, and this "
        "training held none out.",
        fix=f"Put a test.parquet (head, relation, tail) beside its triples, or {HOLD_OUT}",
    )


def find_split(workspace: Workspace, graph: Graph, interactions: Path) -> PurchaseSplit | None:
    """The split whose training purchases a graph holds, if it is one of these interactions."""
    table = file_digest(regular_file(interactions))
    for split in splits_of(workspace, graph):
        if split.manifest is not None and split.manifest.parents["interactions"] == table:
            return split
    return None


def splits_of(workspace: Workspace, graph: Graph) -> Iterator[PurchaseSplit]:
    """The splits whose training purchases a graph holds; equal ones may come from several files."""
    digest = graph.manifest.parents.get("split") if graph.manifest else None
    for folder, manifest in workspace.manifests("split"):
        if digest is not None and manifest.about.get("content") == digest:
            yield PurchaseSplit.load(folder)


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
    kg = graph.source if graph else "PATH"
    if method == "med":
        of_graph = {"graph_digest": graph.digest} if graph else {}
        if folder := workspace.newest("embedding", method=method, **of_graph):
            return Embedding.load(folder)
        what, fix = "embedding", f"Train one: medapps train --kg {kg}"
    else:
        of_graph = {"graph": graph.digest} if graph else {}
        size = {} if dim is None else {"dim": dim}
        # not what devices got of it
        if folder := workspace.newest("crop", method=method, exported=None, **of_graph, **size):
            return load_crop(folder)
        what = f"baseline {method!r}" + ("" if dim is None else f" with dim {dim}")
        fix = f"Make it: medapps baseline {method} --dim {dim or 10} --kg {kg}"
    of = f" of {graph.name}" if graph else ""
    raise MedappsError(f"The workspace {workspace.root} holds no {what}{of}.", fix=fix)


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
