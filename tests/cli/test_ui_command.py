"""`medapps ui` starts a server that ends with it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from medapps.tracking import track


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    place = tmp_path / "a b%20[1]#x?y=1"
    with track(place, experiment="shown", name="n") as run:
        run.text("hello", "note.txt")
    return place


def ask(port: int, path: str, host: str) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": host})
    try:
        return int(urllib.request.urlopen(request, timeout=5).status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_warns_checks_names_and_ends_with_its_parent(number, workspace: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["ui", "--workspace", str(workspace), "--host", "0.0.0.0", "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "medapps", *words, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(240):
        if ask(port, "/health", "localhost"):
            break
        time.sleep(0.5)
    below = psutil.Process(process.pid).children(recursive=True)
    assert below
    assert ask(port, "/", f"localhost:{port}") == 200
    assert ask(port, "/", socket.gethostname()) == 200
    assert ask(port, "/", "evil.example") == 403
    found = "/ajax-api/2.0/mlflow/experiments/get-by-name?experiment_name=shown"
    assert ask(port, found, "localhost") == 200
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert not psutil.wait_procs(below, timeout=20)[1]
    assert "no password" in err
    if number == signal.SIGTERM:
        assert process.returncode == 143
        assert json.loads(out)["exit_code"] == 143
