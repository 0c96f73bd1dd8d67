"""`medapps ui`: the MLflow UI on this workspace."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Annotated

import typer

from medapps.cli.common import Job, Result, command


@command("ui", example="medapps ui --port 5000")
def ui(
    job: Job,
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 5000,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others can reach anything but loopback.")
    ] = "127.0.0.1",
) -> Result:
    """Open the MLflow UI on this workspace; loopback only unless --host says otherwise."""
    from medapps.errors import MedappsError
    from medapps.tracking import tracking_uri

    uri = tracking_uri(job.root)
    if uri.startswith("sqlite:") and not (job.root / "mlflow.db").exists():
        raise MedappsError(
            f"{job.root} has no runs yet.", fix="Make some first: medapps demo, or medapps train."
        )
    address = f"http://{host}:{port}"
    job.say(f"The runs of {job.root} are at [bold]{address}[/] (Ctrl-C ends it).")
    program = [sys.executable, "-m", "mlflow", "ui", "--workers", "1"]
    program += ["--backend-store-uri", uri, "--host", host, "--port", str(port)]
    environment = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
    server = subprocess.Popen(program, env=environment)
    try:
        code = server.wait()
    finally:
        if server.poll() is None:
            server.terminate()
            server.wait()
    if code:
        raise MedappsError(
            f"The MLflow UI ended with code {code}.", fix="Is the port taken? Try --port."
        )
    return Result({"address": address})
