"""Runs as a store has them, and one of another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mlflow.entities import Run as StoredRun
from mlflow.tracking import MlflowClient

from medapps.tracking import (
    tracking_uri,
)


def stored(workspace: Path, name: str) -> StoredRun:
    client = MlflowClient(tracking_uri(workspace))
    experiments = [e.experiment_id for e in client.search_experiments()]
    return client.search_runs(experiments, f"attributes.run_name = '{name}'")[0]


def start(workspace: Path, name: str = "orphan") -> subprocess.Popen[str]:
    """A process that holds a run open in the workspace."""
    code = (
        "import sys, time, pathlib\n"
        "from medapps.tracking import track\n"
        f"with track(pathlib.Path(sys.argv[1]), experiment='other', name={name!r}):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(60)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(workspace)], stdout=subprocess.PIPE, text=True
    )
