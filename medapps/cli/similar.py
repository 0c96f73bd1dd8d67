"""`medapps similar`: the users nearest to a user."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medapps.cli.common import Job, Result, command
from medapps.cli.options import Dim, Embedding, Method


@command("similar", example="medapps similar user_17 --dim 10 -k 20")
def similar(
    job: Job,
    users: Annotated[list[str], typer.Argument(metavar="USER...", help="Names of users.")],
    dim: Dim = 10,
    k: Annotated[int, typer.Option("-k", min=1, help="How many neighbours.")] = 20,
    everything: Annotated[
        bool, typer.Option("--all", help="Seek among all entities, not only users.")
    ] = False,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Use an index (faiss) and report its recall.")
    ] = False,
    crop: Annotated[Path | None, typer.Option(help="A crop's folder instead of these.")] = None,
    embedding: Embedding = None,
    method: Method = "med",
) -> Result:
    """Find the users whose vectors are nearest, by name."""
    job.settings()
    from medapps.cli.tables import rows
    from medapps.crop.crop import load_crop
    from medapps.crop.embedding import cut
    from medapps.crop.similar import search
    from medapps.stages.find import find_source

    if crop is not None:
        vectors = load_crop(crop)
    else:
        source = find_source(job.workspace, method, dim, embedding=embedding)
        vectors, _ = cut(source, dim)
    indexes = job.root / "indexes" if approximate else None
    found = search(vectors, users, k, users_only=not everything, indexes=indexes)
    values = {
        "dim": vectors.dim,
        "k": k,
        "exact": found.exact,
        "recall": found.recall,
        "neighbours": found.table.to_dicts(),
    }
    note = "exact" if found.exact else f"approximate, recall against exact {found.recall:.3f}"
    return Result(values, [rows(found.table), note])
