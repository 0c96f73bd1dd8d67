"""`medapps serve`: vectors, labels and recommendations over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from medapps.cli.common import Job, Result, command, print_once

Token = Annotated[
    str | None,
    typer.Option(envvar="MEDAPPS_TOKEN", help="Word that everybody has to send; see SECURITY.md."),
]


@command("serve", example="medapps serve --port 8000")
def serve(
    job: Job,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to listen on; anything but loopback needs a token.")
    ] = "127.0.0.1",
    token: Token = None,
    vectors: Annotated[
        str | None, typer.Option(metavar="ALIAS", help="Alias of medapps-crop; else the newest.")
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(metavar="ALIAS", help="Alias of medapps-labeller; else the newest."),
    ] = None,
    recommendations: Annotated[
        str | None,
        typer.Option(metavar="ALIAS", help="Alias of medapps-recommender; else the newest."),
    ] = None,
) -> Result:
    """Answer questions over HTTP with the registered models; a new version is taken over."""
    from medapps.serve.following import Models
    from medapps.serve.guard import (
        LOOPBACK,
        Guard,
        address_of,
        check_token,
        is_loopback,
        listening,
        run_server,
    )
    from medapps.serve.http import LARGEST_BODY, make_app, served
    from medapps.serve.models import CROP, LABELLER, RECOMMENDER

    token = check_token(host, token)
    aliases = {CROP: vectors, LABELLER: labels, RECOMMENDER: recommendations}
    with listening(host, port) as place:
        models = Models(job.root, aliases, job.say)
        models.check()
        app, server = make_app(models)
        names = (*LOOPBACK, host) if is_loopback(host) else None
        address = address_of(host, place.getsockname()[1])
        told = Result({"address": address, "models": served(models)})
        job.say(f"Answering at {address} (Ctrl-C ends it).")
        print_once(job, told)
        run_server(Guard(app, token, names, largest=LARGEST_BODY), place)
    return Result({}, [f"{sum(server.requests.values()):,} requests were answered."])
