"""A workspace with a store of its own, and a real server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for the module: building its tables takes seconds."""
    return tmp_path_factory.mktemp("workspace")


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    program = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
    program += ["--host", "127.0.0.1", "--port", str(port)]
    program += ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db"]
    program += ["--artifacts-destination", str(tmp_path / "artifacts")]
    log = (tmp_path / "server.log").open("w")
    with subprocess.Popen(
        program, stdout=log, stderr=log, cwd=tmp_path, start_new_session=True
    ) as process:
        try:
            for _ in range(240):
                try:
                    urllib.request.urlopen(f"{address}/health", timeout=1)
                    break
                except OSError:
                    time.sleep(0.5)
            else:
                pytest.fail((tmp_path / "server.log").read_text())
            yield address
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            log.close()
