"""`medapps baseline`: another way to a small model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medapps.cli.common import Job, Result, Setting, command
from medapps.cli.options import EPOCHS, Dim


@command(
    "baseline",
    example="medapps baseline pca --dim 10 --kg skg.parquet",
    settings={
        "--epochs": EPOCHS,
        "--teacher-dim": Setting(
            "baseline.teacher_dim", "Size of the teacher; else the largest of train.dims.", int
        ),
        "--search": Setting(
            "baseline.search.when", "Search for margin, penalty and rate of dt: auto, on or off."
        ),
    },
)
def baseline(
    job: Job,
    name: Annotated[
        str, typer.Argument(help="dt, ext, ext-l, ext-v, pca, bkd, ta, dualde or iterde.")
    ],
    dim: Dim,
    kg: Annotated[
        Path | None,
        typer.Option("--kg", help="Triples: a file or a dataset folder; else the newest graph."),
    ] = None,
    embedding: Annotated[
        Path | None,
        typer.Option(help="Train as this embedding was trained; else as the newest of the graph."),
    ] = None,
) -> Result:
    """Make a small model without MED: trained alone, extracted, projected or distilled."""
    from medapps.cli.tables import facts, training_bar
    from medapps.config import resolve
    from medapps.settings import Settings
    from medapps.stages import Baseline, baseline_stage, graph_stage
    from medapps.stages.find import find_graph, trained_as
    from medapps.train.session import Session

    given = resolve(Settings, file=job.config, sets=job.sets or (), flags=job.flags)
    graph = graph_stage(job.runner, kg, given)[0] if kg else find_graph(job.workspace, embedding)
    like = trained_as(job.workspace, graph, given.train, embedding)
    settings = job.settings(base={"train": like[1]} if like else None)
    job.say(f"{graph.name}: {len(graph.entities):,} entities, {len(graph.train):,} triples")
    if like:
        epochs = settings.train.epochs
        job.say(f"Trained as {like[0]} was, where no setting says otherwise: {epochs} epochs.")
    with job.stopping() as stop, training_bar(job) as bar:
        asked = Baseline(name, dim, settings.baseline, settings.train)
        session = Session(job.seed, progress=bar, stop=stop)
        crop, folder = baseline_stage(job.runner, graph, asked, session)
    kept = ("train_seconds", "own_seconds", "teacher_seconds", "search_seconds", "valid_mrr")
    values = {
        "artifact": folder,
        "method": crop.method,
        "dim": crop.dim,
        "settings_of": like and like[0],
        **{key: crop.about[key] for key in kept if key in crop.about},
    }
    after = f"Next: medapps label, recommend --method {name}."
    if open_ends := crop.about.get("search_at_edge"):
        said = " and ".join(open_ends)
        after = f"The search ended at its last {said}; see baseline.search.further. {after}"
        values["search_at_edge"] = open_ends
    return Result(values, [facts(values), after])
