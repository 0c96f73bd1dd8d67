"""`medapps crop`: what a device carries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from medapps.cli.common import Job, Result, command


@command("crop", example="medapps crop --tier phone --dtype int8 --users-only")
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
    form: Annotated[
        str | None, typer.Option("--format", help="safetensors, parquet or npz.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, float16 or int8.")] = None,
    users_only: Annotated[
        bool | None, typer.Option("--users-only/--all", help="Leave out all but the users.")
    ] = None,
    ids: Annotated[
        Path | None, typer.Option("--ids", help="Only these entities: a file of ids.")
    ] = None,
    relations: Annotated[
        bool | None, typer.Option("--relations/--no-relations", help="Needed to score triples.")
    ] = None,
    allow_untrained: Annotated[
        bool | None, typer.Option("--allow-untrained", help="Accept a dim that was not trained.")
    ] = None,
    embedding: Annotated[
        Path | None, typer.Option("--embedding", help="Its folder; else the newest one.")
    ] = None,
    method: Annotated[str, typer.Option(help="med, or a baseline made before.")] = "med",
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write; else in the workspace.")
    ] = None,
) -> Result:
    """Cut a trained embedding to what a device can carry."""
    settings = job.settings(
        {
            "crop.format": form,
            "crop.dtype": dtype,
            "crop.users_only": users_only,
            "crop.relations": relations,
            "crop.allow_untrained": allow_untrained,
        }
    )
    from medapps.cli.tables import facts, rows
    from medapps.crop.export import export_facts
    from medapps.crop.idlist import read_ids
    from medapps.crop.select import SizeRequest, check_share, choose
    from medapps.stages.crop import crop_stage, croppable, validation_quality
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
    choice = choose(croppable(source), settings.crop, wanted, names=names, quality=quality)
    made, folder = crop_stage(job.runner, source, choice, settings.crop, names=names, out=out)
    values = {"artifact": folder, **export_facts(made)}
    show: list[Any] = [facts(values), "Next: medapps similar, or load_crop in Python."]
    if choice.curve is not None:
        values["retention"] = choice.curve.to_dicts()
        show.insert(0, rows(choice.curve))
    return Result(values, show)
