"""`medapps train`: one training for all sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medapps.cli.common import Job, Result, command


@command("train", example="medapps train --kg skg.parquet --dims 10,100,500")
def train(
    job: Job,
    kg: Annotated[Path, typer.Option("--kg", help="Triples: a file or a dataset folder.")],
    dims: Annotated[str | None, typer.Option(help="Ascending sizes, e.g. 10,100,500.")] = None,
    scorer: Annotated[
        str | None,
        typer.Option(help="How a triple is scored: transe, rotate, pairre, simple, complex, ..."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the triples.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it was cut off.")] = False,
    add_interactions: Annotated[
        str | None,
        typer.Option(metavar="RELATION", help="Add train interactions as triples of a relation."),
    ] = None,
    inverse: Annotated[
        bool, typer.Option("--inverse", help="Add every training triple backwards too.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    table: Annotated[
        str | None,
        typer.Option(help="fp32; bf16 in half the memory; mmap: in a file, for any size."),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory to stay within, such as 4GiB (mmap).")
    ] = None,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Share the work with all ranks of torchrun.")
    ] = False,
) -> Result:
    """Train one croppable embedding; every prefix in --dims is a model of its own."""
    settings = job.settings(
        {
            "train.dims": dims and dims.split(","),
            "train.scorer": scorer,
            "train.epochs": epochs,
            "train.device": device,
            "train.table": table,
            "train.memory": memory,
            "graph.add_interactions": add_interactions,
            "graph.inverse": inverse or None,
        }
    )
    from medapps.cli.progress import training_bar
    from medapps.cli.tables import facts
    from medapps.stages.team import joining

    with joining(job.bench, settings, distributed=distributed) as team:
        job.quieten(team.rank)
        graph = team.graph(kg, settings.graph)
        job.say(f"{graph.name}: {len(graph.entities):,} entities, {len(graph.train):,} triples")
        with job.stopping() as stop, training_bar(job) as bar:
            embedding, folder = team.train(
                graph, settings.train, seed=job.seed, resume=resume, progress=bar, stop=stop
            )
    if team.rank > 0:
        return Result({})
    values = {
        "artifact": folder,
        "dims": list(embedding.dims),
        "scorer": settings.train.scorer,
        **embedding.metrics,
    }
    return Result(values, [facts(values), "Next: medapps rank, label, recommend, or crop."])
