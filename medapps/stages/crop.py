"""The stage that makes what a device carries, and the sources that it is made from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medapps.crop.choose import Choice
from medapps.crop.crop import Crop, load_crop
from medapps.crop.cut import Croppable, OneSize, cut
from medapps.crop.export import export_files
from medapps.crop.retention import log_curve
from medapps.crop.tiers import CropConfig
from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.serve.crop_register import DIGEST, log_crop
from medapps.stages.bench import Bench, Stage, carry_out, stage_run
from medapps.store import (
    MANIFEST,
    Manifest,
    Provenance,
    Workspace,
    digest_of,
    read_manifest,
    refuse_folder,
)
from medapps.tracking import Run, check_names, registered

if TYPE_CHECKING:
    import polars as pl

    from medapps.crop.embedding import Embedding

_READ_WHOLE = 256 * 2**20
"""Bytes up to which a Parquet crop is tried out as a model, which reads it whole."""


def crop_stage(
    bench: Bench,
    source: Embedding | Crop,
    choice: Choice,
    config: CropConfig,
    *,
    names: pl.Series | None = None,
    out: Path | None = None,
) -> tuple[Manifest, Path]:
    """Export a crop of an embedding, or a baseline's crop, into the workspace or into `out`.

    What was written is not read back: a Parquet crop may be larger than memory.
    """
    if bench.tracked:
        check_names(config.model, choice.tier)
    crop, warning = cut(croppable(source), choice.dim, allow_untrained=config.allow_untrained)
    if warning:
        bench.say(f"Warning: {warning}")
    digest = source.manifest.digest if source.manifest else ""
    training = source.manifest.parents.get("run") if source.manifest else None
    settings: dict[str, Any] = {
        "dim": choice.dim,
        "dtype": choice.dtype,
        "format": config.format,
        "users_only": config.users_only,
        "relations": config.relations,
        "ids": None if names is None else digest_of(names.to_list()),
        "tier": choice.tier,
    }
    data = str(crop.about.get("data", "data"))
    tags = {"method": crop.method, "dim": choice.dim, "task": "crop", "data": data}
    tags |= {"tier": choice.tier or "", "dtype": choice.dtype}
    if warning:
        tags["untrained"] = "true"
    name = f"{crop.method}/{choice.dim}/crop/{choice.dtype}"
    stage = Stage("crop", "crop", settings, {"source": digest}, data, name, tags)

    def make(run: Run, folder: Path) -> None:
        began = time.perf_counter()
        made = export_files(
            crop,
            folder,
            dtype=choice.dtype,
            form=config.format,
            users_only=config.users_only,
            names=names,
            relations=config.relations,
            about={"exported": True} | ({"tier": choice.tier} if choice.tier else {}),
            provenance=Provenance(
                settings,
                {"source": digest}
                | ({"run": run.id} if run.id else {})
                | ({"training_run": training} if training else {}),
                force=bench.force,
                ours=out is None,
            ),
        )
        seconds = time.perf_counter() - began
        run.metrics(
            {
                "bytes": made.bytes,
                "bytes_per_row": made.bytes / max(1, made.about["rows"]),
                "export_mb_per_second": made.bytes / 1e6 / seconds,
            }
        )
        if choice.curve is not None:
            log_curve(run, choice.curve)
        if config.format == "parquet" and made.bytes > _READ_WHOLE:
            bench.say("Not logged as a model: a Parquet crop of this size is for other tools.")
            return
        log_crop(run, folder, model=config.model, tier=choice.tier if _is_med(crop) else None)

    if out is None:
        made, folder = carry_out(bench, stage, make, _manifest)
        tier = choice.tier if _is_med(crop) else None
        known = None
        if bench.tracked and tier:
            known = registered(bench.workspace.root, data, config.model, tier, DIGEST)
        # not yet, when the command that made it was killed or ran untracked
        if known is not None and made.digest not in known:
            bench.say(f"Registering it as {config.model}@{tier}, which was not done before.")
            with stage_run(bench, stage) as run:
                log_crop(run, folder, model=config.model, tier=tier)
        return made, folder
    refuse_folder(out, "crop", force=bench.force)
    if _is_source(out, digest):
        raise MedappsError(
            f"{out} is what the crop is cut from, so it is not replaced.",
            fix="Name another folder.",
        )
    with stage_run(bench, stage) as run:
        make(run, out)
    return _manifest(out), out


def _is_source(out: Path, digest: str) -> bool:
    return (out / MANIFEST).is_file() and _manifest(out).digest == digest


def _manifest(folder: Path) -> Manifest:
    return read_manifest(folder, kind="crop", verify_below=0)


def _is_med(crop: Crop) -> bool:
    """Tiers of the registry are those of the trained embedding, never a baseline's or a try."""
    return crop.method == "med" and not crop.about.get("untrained")


def croppable(source: Embedding | Crop) -> Croppable:
    """A source with sizes to choose from."""
    return OneSize(source) if isinstance(source, Crop) else source


def find_source(
    workspace: Workspace, folder: Path | None = None, method: str = "med", dim: int | None = None
) -> Embedding | Crop:
    """The embedding in `folder`, else the newest of the workspace; or the newest baseline."""
    from medapps.crop.embedding import Embedding

    if folder is not None:
        return Embedding.load(folder)
    if method == "med":
        newest = workspace.newest("embedding")
        if newest is None:
            raise MedappsError(
                f"The workspace {workspace.root} holds no embedding.",
                fix="Train one: medapps train --kg PATH.",
            )
        return Embedding.load(newest)
    wanted: dict[str, Any] = {"method": method, "exported": None}
    newest = workspace.newest("crop", **wanted | ({} if dim is None else {"dim": dim}))
    if newest is None:
        raise MedappsError(
            f"The workspace {workspace.root} holds no baseline {method!r}"
            + (f" with dim {dim}." if dim is not None else "."),
            fix=f"Make it: medapps baseline {method} --dim {dim or 10}.",
        )
    return load_crop(newest)


def validation_quality(
    workspace: Workspace, source: Embedding | Crop, *, limit: int, candidates: int
) -> Callable[[Crop], float]:
    """MRR on the triples that validated the source's training, in the graph it was trained on."""
    graph = _graph_of(workspace, source)
    graph = replace(graph, valid=_validation_triples(graph, source))
    among = candidates if len(graph.entities) > candidates else None

    def quality(crop: Crop) -> float:
        from medapps.evaluate.link_prediction import rank_crop

        reports, _ = rank_crop(crop, graph, split="valid", candidates=among, limit=limit)
        return reports[0].metrics["mrr"]

    return quality


def _validation_triples(graph: Graph, source: Embedding | Crop) -> np.ndarray:
    """The graph's validation triples, else those that the training held out."""
    if len(graph.valid):
        return graph.valid
    if not isinstance(source, Crop) and source.manifest is not None:
        from medapps.train.batches.holdout import split_validation
        from medapps.train.config import MedConfig

        settings = dict(source.manifest.config)
        seed = int(settings.pop("seed", 0))
        _, held_out = split_validation(graph, MedConfig(**settings), seed)
        if len(held_out):
            return held_out
    raise MedappsError(
        f"{graph.name} has no validation triples, so the share of quality kept is not known.",
        fix="Put a valid.parquet beside its triples, or train with --set train.patience=5 --set "
        "train.fraction=0.05, which holds some out.",
    )


def _graph_of(workspace: Workspace, source: Embedding | Crop) -> Graph:
    digest = source.manifest.parents.get("graph") if source.manifest else None
    for folder in workspace.saved("graph"):
        graph = Graph.load(folder)
        if graph.digest == digest:
            return graph
    raise MedappsError(
        "The graph of this embedding is not in the workspace, so its quality cannot be measured.",
        fix="Use --dim or --tier, or train it in this workspace.",
    )
