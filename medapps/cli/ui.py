"""`medapps ui`: the MLflow UI on this workspace."""

from __future__ import annotations

import socket
from typing import Annotated

import typer

from medapps.cli.common import Job, Result, command, print_once
from medapps.cli.serve import Token


@command("ui", example="medapps ui --port 5000")
def ui(
    job: Job,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 5000,
    host: Annotated[
        str, typer.Option(help="Address to listen on; anything but loopback needs a token.")
    ] = "127.0.0.1",
    token: Token = None,
    allowed_hosts: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Names under which browsers may ask, with commas."),
    ] = None,
    allowed_origins: Annotated[
        str | None, typer.Option(metavar="URLS", help="Other sites that may use it, with commas.")
    ] = None,
) -> Result:
    """Open the MLflow UI on this workspace; loopback only unless --host says otherwise."""
    from medapps.errors import MedappsError
    from medapps.serve.guard import Guard, address_of, check_token, listening, run_server
    from medapps.tracking import is_local, shown_uri, tracking_uri
    from medapps.tracking.sqlite import is_made, store_file
    from medapps.tracking.ui import ui_app

    uri = tracking_uri(job.root)
    if uri.startswith(("http:", "https:")):
        return Result({"address": shown_uri(uri)}, [f"The runs are at {shown_uri(uri)}."])
    if is_local(job.root) and not is_made(store_file(job.root)):
        raise MedappsError(
            f"{job.root} has no runs yet.", fix="Make some first: medapps demo, or medapps train."
        )
    token = check_token(host, token)
    with listening(host, port) as place:
        port = place.getsockname()[1]
        app = ui_app(job.root, allowed_hosts or ",".join(_names(host, port)), allowed_origins)
        address = address_of(host, port)
        job.say(f"The runs of {job.root} are at {address} (Ctrl-C ends it).")
        if token:
            job.say(f"Open {address}/?token=TOKEN once; programs set MLFLOW_TRACKING_TOKEN.")
        print_once(job, Result({"address": address}))
        run_server(Guard(app, token, browser=True), place)
    return Result({"address": address})


def _names(host: str, port: int) -> list[str]:
    """The names under which a browser may ask: the loopback's, and the machine's if it is open."""
    from medapps.serve.guard import LOOPBACK, is_loopback

    names = list(LOOPBACK)
    if not is_loopback(host):
        names += [socket.gethostname(), socket.getfqdn(), *_addresses()]
        names += [] if host in ("0.0.0.0", "::") else [host]
    return [name for each in dict.fromkeys(names) for name in (each, f"{each}:{port}")]


def _addresses() -> list[str]:
    """The addresses of this machine."""
    import psutil

    written = {socket.AF_INET: "{}", socket.AF_INET6: "[{}]"}
    found = [one for card in psutil.net_if_addrs().values() for one in card]
    return [
        written[one.family].format(one.address)
        for one in found
        if one.family in written and "%" not in one.address
    ]
