"""Start ranks under torchrun on loopback; a failed launch shows its whole log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PATIENCE = 240
"""Seconds until a launch is ended; it takes about ten on a quiet machine."""


def launch(ranks: int, *command: object, restarts: int = 0, fails: bool = False) -> str:
    """Run `-m MODULE ...` on so many ranks and return everything that was printed."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    options = ["--standalone", "--nproc-per-node", ranks, "--max-restarts", restarts]
    program = [sys.executable, "-m", "torch.distributed.run", *options, *command]
    with subprocess.Popen(
        [str(part) for part in program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            log, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends its ranks
            log, _ = process.communicate(timeout=60)
            pytest.fail(f"{ranks} ranks did not end in {PATIENCE} s:\n{log}", pytrace=False)
    if (process.returncode != 0) != fails:
        pytest.fail(f"{ranks} ranks ended with {process.returncode}:\n{log}", pytrace=False)
    return log
