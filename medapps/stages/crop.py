"""The stage that makes what a device carries."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medapps.crop.crop import Crop
from medapps.crop.embedding import cut
from medapps.crop.export import Export, chosen_rows, export_files
from medapps.crop.select import Choice, log_curve
from medapps.crop.tiers import CropConfig
from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.serve.register import DIGEST, log_crop
from medapps.stages.find import HOLD_OUT, graph_of, held_out
from medapps.stages.runner import Runner, Stage, run_stage
from medapps.store import MANIFEST, Manifest, Workspace, digest_of, read_manifest, refuse_folder
from medapps.tracking import Run, check_names, registered

if TYPE_CHECKING:
    import polars as pl

    from medapps.crop.embedding import Embedding

_READ_WHOLE = 256 * 2**20
"""Bytes up to which a Parquet crop is tried out as a model, which reads it whole."""


def crop_stage(
    runner: Runner,
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
    if runner.tracked:
        check_names(config.model, choice.tier)
    crop, warning = cut(source, choice.dim, allow_untrained=config.allow_untrained)
    if warning:
        runner.say(f"Warning: {warning}")
    digest = source.manifest.digest if source.manifest else ""
    training = source.manifest.parents.get("run") if source.manifest else None
    tier = choice.tier if _is_med(crop) else None
    stage = _cropping(crop, choice, config, names, digest)

    wanted = Export(
        choice.dtype,
        config.format,
        config.users_only,
        names,
        config.relations,
        about={"exported": True} | ({"tier": choice.tier} if choice.tier else {}),
    )
    chosen_rows(crop, wanted)  # refused before a run is opened

    def make(run: Run, folder: Path) -> Manifest:
        began = time.perf_counter()
        provenance = stage.provenance(run=run.id, training_run=training)
        here = replace(provenance, force=runner.force, ours=out is None)
        made = export_files(crop, folder, wanted, here)
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
            runner.say("Not logged as a model: a Parquet crop of this size is for other tools.")
        else:
            log_crop(run, folder, model=config.model, tier=tier)
        return made

    if out is not None:
        refuse_folder(out, "crop", force=runner.force)
        if (out / MANIFEST).is_file() and _manifest(out).digest == digest:
            raise MedappsError(
                f"{out} is what the crop is cut from, so it is not replaced.",
                fix="Name another folder.",
            )
        with runner.run(stage) as run:
            return make(run, out), out
    made, folder = run_stage(runner, stage, make, _manifest)
    known = None
    if runner.tracked and tier:
        known = registered(runner.workspace.root, stage.experiment, config.model, tier, DIGEST)
    # not yet, when the command that made it was killed or ran untracked
    if known is not None and made.digest not in known:
        runner.say(f"Registering it as {config.model}@{tier}, which was not done before.")
        with runner.run(stage) as run:
            log_crop(run, folder, model=config.model, tier=tier)
    return made, folder


def _cropping(
    crop: Crop, choice: Choice, config: CropConfig, names: pl.Series | None, digest: str
) -> Stage:
    """What the export of a crop is called."""
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
    if crop.about.get("untrained"):
        tags["untrained"] = "true"
    name = f"{crop.method}/{choice.dim}/crop/{choice.dtype}"
    return Stage("crop", "crop", settings, {"source": digest}, data, name, tags)


def _manifest(folder: Path) -> Manifest:
    return read_manifest(folder, kind="crop", verify_below=0)


def _is_med(crop: Crop) -> bool:
    """Tiers of the registry are those of the trained embedding, never a baseline's or a try."""
    return crop.method == "med" and not crop.about.get("untrained")


def validation_quality(
    workspace: Workspace, source: Embedding | Crop, *, limit: int, candidates: int
) -> Callable[[Crop], float]:
    """MRR on the triples that validated the source's training, in the graph it was trained on."""
    graph = graph_of(workspace, source)
    graph = replace(graph, valid=_validation_triples(graph, source))
    among = candidates if len(graph.entities) > candidates else None

    def quality(crop: Crop) -> float:
        from medapps.evaluate.link_prediction import rank_crop

        reports, _ = rank_crop(crop, graph, split="valid", candidates=among, limit=limit)
        return reports[0].metrics["mrr"]

    return quality


def _validation_triples(graph: Graph, source: Embedding | Crop) -> np.ndarray:
    """The graph's validation triples, else those that the training held out."""
    found = graph.valid if len(graph.valid) else held_out(graph, source)
    if len(found):
        return found
    raise MedappsError(
        f"{graph.name} has no validation triples, so the share of quality kept is not known.",
        fix=f"Put a valid.parquet beside its triples, or {HOLD_OUT}",
    )
