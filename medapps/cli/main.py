"""`medapps`: the commands, each in its own file. Heavy imports live inside the commands."""

from __future__ import annotations

from typing import Annotated

import typer

from medapps import __version__
from medapps.cli import (  # noqa: F401  (importing a file adds its commands)
    baseline,
    compare,
    crop,
    data,
    doctor,
    export,
    grow,
    label,
    rank,
    recommend,
    run,
    serve,
    similar,
    text,
    train,
    ui,
)
from medapps.cli.common import app


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train one croppable knowledge-graph embedding and use it on every device."""


def main() -> None:
    """The program, once its commands are imported."""
    app()
