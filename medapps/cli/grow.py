"""`medapps grow`: new users and items without training again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from medapps.cli.common import Job, Result, command
from medapps.cli.options import Embedding, Resume

_SHOWN = (
    "artifact", "dims", "scorer", "epochs", "new_entities", "new_triples", "trained_triples",
    "grow_seconds",
)  # fmt: skip


@command("grow", example="medapps grow --kg tonight.parquet")
def grow(
    job: Job,
    kg: Annotated[
        Path, typer.Option("--kg", help="New triples: a file, or a folder with purchases too.")
    ],
    embedding: Embedding = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Train all rows from where they are.")
    ] = False,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs over the new triples; with --refresh, all.")
    ] = None,
    resume: Resume = False,
) -> Result:
    """Train rows for new users and items; all others stay as they are, bit for bit."""
    settings = job.settings()
    from medapps.cli.tables import facts, training_bar
    from medapps.stages.grow import Growth, grow_stage
    from medapps.train.session import Session

    changes = {
        section: given(getattr(settings, section), section, job.given)
        for section in ("graph", "train")
    }
    growth = Growth(kg, embedding, epochs, refresh, **changes)
    with job.stopping() as stop, training_bar(job) as bar:
        session = Session(job.seed, progress=bar, stop=stop, resume=resume)
        made, graph, folder = grow_stage(job.runner, growth, session)
    new = {name: graph.notes.get(name, 0) for name in ("new_entities", "new_triples")}
    values: dict[str, Any] = {
        "artifact": folder,
        "dims": list(made.dims),
        "scorer": made.scorer,
        **made.metrics,
        **new,
    }
    shown = {key: values[key] for key in _SHOWN if key in values}
    return Result(values, [facts(shown), "Next: medapps crop, label or recommend."])


def given(section: Any, name: str, keys: set[str]) -> dict[str, Any]:
    """What --set says of a section, each setting without its group."""
    from medapps.train.config import LEAVES

    found = {}
    for key in keys:
        if key.startswith(f"{name}."):
            leaf = key.rpartition(".")[2]
            group = LEAVES.get(leaf) if name == "train" else None
            found[leaf] = getattr(getattr(section, group) if group else section, leaf)
    return found
