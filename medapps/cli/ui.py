"""`medapps ui`: the MLflow UI on this workspace."""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import sys
from typing import Annotated

import typer

from medapps.cli.common import Job, Result, command

_WATCHED = """
import os, signal, subprocess, sys, threading, time
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def end():
    sys.stdin.read()
    os.killpg(0, signal.SIGTERM)
    time.sleep(5)
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=end, daemon=True).start()
sys.exit(server.wait())
"""
"""Runs a server until it ends or standard input does, which is when `medapps ui` is gone."""


@command("ui", example="medapps ui --port 5000")
def ui(
    job: Job,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 5000,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others can reach anything but loopback.")
    ] = "127.0.0.1",
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
    from medapps.tracking import is_local, shown_uri, tracking_uri
    from medapps.tracking.sqlite import is_made, store_file

    uri = tracking_uri(job.root)
    if uri.startswith(("http:", "https:")):
        return Result({"address": shown_uri(uri)}, [f"The runs are at {shown_uri(uri)}."])
    if is_local(job.root) and not is_made(store_file(job.root)):
        raise MedappsError(
            f"{job.root} has no runs yet.", fix="Make some first: medapps demo, or medapps train."
        )
    address = f"http://{host}:{port}"
    job.say(f"The runs of {job.root} are at {address} (Ctrl-C ends it).")
    if not _is_loopback(host):
        job.say(
            f"Warning: everyone who reaches port {port} of this machine can read, change and "
            "delete the runs; there is no password."
        )
    program = [sys.executable, "-m", "mlflow", "ui", "--workers", "1"]
    program += ["--host", host, "--port", str(port)]
    program += ["--allowed-hosts", allowed_hosts or ",".join(_names(host, port))]
    if allowed_origins:
        program += ["--cors-allowed-origins", allowed_origins]
    # the address may hold a password, which the list of processes would show
    environment = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_BACKEND_STORE_URI": uri}
    server = subprocess.Popen(
        [sys.executable, "-c", _WATCHED, *program],
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=sys.stderr.fileno(),
        start_new_session=True,
    )
    assert server.stdin is not None
    try:
        code = server.wait()
    finally:
        server.stdin.close()
        server.wait()
    if code:
        raise MedappsError(
            f"The MLflow UI ended with code {code}.", fix="Is the port taken? Try --port."
        )
    return Result({"address": address})


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _names(host: str, port: int) -> list[str]:
    """The names under which a browser may ask: the loopback's, and the machine's if it is open."""
    names = ["localhost", "127.0.0.1", "[::1]"]
    if not _is_loopback(host):
        names += [socket.gethostname(), socket.getfqdn(), *_addresses()]
        names += [] if host in ("0.0.0.0", "::") else [host]
    return [name for each in dict.fromkeys(names) for name in (each, f"{each}:{port}")]


def _addresses() -> list[str]:
    """The addresses of this machine."""
    import psutil

    found = [one for card in psutil.net_if_addrs().values() for one in card]
    four = [one.address for one in found if one.family == socket.AF_INET]
    six = [
        f"[{one.address}]"
        for one in found
        if one.family == socket.AF_INET6 and "%" not in one.address
    ]
    return four + six
