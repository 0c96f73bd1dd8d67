"""`medapps train`: one training for all sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medapps.cli.common import Job, Result, Setting, command
from medapps.cli.options import EPOCHS, Resume

_SHOWN = ("artifact", "dims", "scorer", "epochs", "best_valid_mrr", "best_epoch", "train_seconds")
"""What people are told of a training; --json has all that was measured."""


@command(
    "train",
    example="medapps train --kg skg.parquet --dims 10,100,500",
    settings={
        "--dims": Setting("train.dims", "Ascending sizes, e.g. 10,100,500.", list),
        "--scorer": Setting(
            "train.scorer", "How a triple is scored: transe, rotate, pairre, simple, complex, ..."
        ),
        "--epochs": EPOCHS,
        "--no-interactions": Setting(
            "graph.interactions", "Leave the purchases beside the graph out of it.", value="off"
        ),
        "--inverse": Setting(
            "graph.inverse", "Add every training triple backwards too.", value=True
        ),
        "--device": Setting("train.device", "auto, cpu or cuda."),
        "--table": Setting(
            "train.table", "fp32; bf16 in half the memory; mmap: in a file, for any size."
        ),
        "--memory": Setting("train.memory", "Memory to stay within, such as 4GiB (mmap)."),
    },
)
def train(
    job: Job,
    kg: Annotated[Path, typer.Option("--kg", help="Triples: a file or a dataset folder.")],
    resume: Resume = False,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Share the work with all processes of torchrun.")
    ] = False,
) -> Result:
    """Train one croppable embedding; every prefix in --dims is a model of its own."""
    settings = job.settings()
    from medapps.cli.tables import facts, training_bar
    from medapps.config import show_bytes
    from medapps.stages import graph_stage, train_stage
    from medapps.stages.find import held_out
    from medapps.stages.train import process_group
    from medapps.train.session import Session

    runner = job.runner
    with process_group(runner, settings, distributed=distributed) as group:
        first = group is None or group.rank == 0
        if not first:
            job.quieten()
            runner = runner.silent()
        graph, _ = graph_stage(runner, kg, settings, group)
        job.say(f"{graph.name}: {len(graph.entities):,} entities, {len(graph.train):,} triples")
        with job.stopping() as stop, training_bar(job) as bar:
            session = Session(job.seed, progress=bar, stop=stop, resume=resume)
            embedding, folder = train_stage(runner, graph, settings.train, session, group)
    if not first:
        return Result({})
    values = {
        "artifact": folder,
        "dims": list(embedding.dims),
        "scorer": settings.train.scorer,
        **embedding.metrics,
    }
    shown = {key: values[key] for key in _SHOWN if key in values}
    shown["peak memory"] = show_bytes(embedding.metrics["peak_rss_bytes"])
    measurable = len(graph.test) or len(graph.valid) or len(held_out(graph, embedding))
    rank = "rank, " if measurable else ""
    return Result(values, [facts(shown), f"Next: medapps {rank}label, recommend, or crop."])
