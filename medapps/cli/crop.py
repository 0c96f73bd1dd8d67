"""`medapps crop`: what a device carries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from medapps.cli.common import Job, Result, Setting, command
from medapps.cli.options import Embedding, Method


@command(
    "crop",
    example="medapps crop --tier phone --dtype int8 --users-only",
    settings={
        "--format": Setting("crop.format", "safetensors, parquet or npz."),
        "--dtype": Setting("crop.dtype", "float32, float16 or int8."),
        "--users-only/--all": Setting("crop.users_only", "Leave out all but the users.", bool),
        "--relations/--no-relations": Setting("crop.relations", "Needed to score triples.", bool),
        "--allow-untrained": Setting(
            "crop.allow_untrained", "Accept a dim that was not trained.", bool
        ),
    },
)
def crop(
    job: Job,
    dim: Annotated[int | None, typer.Option("--dim", help="Size of the crop.")] = None,
    tier: Annotated[
        str | None, typer.Option(help="A named size: server, pc, phone or your own.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The largest crop that fits, e.g. 64MB.")
    ] = None,
    keep: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="The smallest dim with this share of full quality."),
    ] = None,
    ids: Annotated[Path | None, typer.Option(help="Only these entities: a file of ids.")] = None,
    embedding: Embedding = None,
    method: Method = "med",
    out: Annotated[Path | None, typer.Option(help="Where to; else in the workspace.")] = None,
) -> Result:
    """Cut a trained embedding to what a device can carry."""
    settings = job.settings()
    from medapps.cli.tables import facts, rows
    from medapps.crop.export import export_facts
    from medapps.crop.idlist import read_ids
    from medapps.crop.select import SizeRequest, check_share, choose
    from medapps.stages.crop import crop_stage, validation_quality
    from medapps.stages.find import find_source

    source = find_source(job.workspace, method, dim, embedding=embedding)
    names = read_ids(ids, source.entity_ids.dtype) if ids else None
    quality = None
    if keep is not None:
        check_share(keep)
        quality = validation_quality(
            job.workspace,
            source,
            limit=settings.train.validation.triples,
            candidates=settings.train.validation.candidates,
        )
    wanted = SizeRequest(dim, tier, budget, keep)
    choice = choose(source, settings.crop, wanted, names=names, quality=quality)
    made, folder = crop_stage(job.runner, source, choice, settings.crop, names=names, out=out)
    values = {"artifact": folder, **export_facts(made)}
    show: list[Any] = [facts(values), "Next: medapps similar, or load_crop in Python."]
    if choice.curve is not None:
        values["retention"] = choice.curve.to_dicts()
        show.insert(0, rows(choice.curve))
    return Result(values, show)
