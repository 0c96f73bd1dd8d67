"""`medapps ui` shows runs to those who have the token, and ends with a signal."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from medapps.tracking import track

TOKEN = "0123456789abcdef-token"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    place = tmp_path / "a b%20[1]#x?y=1"
    with track(place, experiment="shown", name="n") as run:
        run.text("hello", "note.txt")
    return place


class Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect."""

    def redirect_request(self, *args: object) -> None:
        return None


def ask(port: str, path: str, **headers: str) -> tuple[int, str, str]:
    """Status, body and cookie."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=named)
    try:
        with urllib.request.build_opener(Stay).open(request, timeout=60) as reply:
            return reply.status, reply.read().decode(), ""
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers.get("Set-Cookie", "")


@pytest.mark.slow
def test_the_ui_asks_for_a_token_checks_names_and_ends_with_a_signal(workspace: Path) -> None:
    words = ["ui", "--workspace", str(workspace), "--host", "0.0.0.0", "--port", "0", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "medapps", *words, "--token", TOKEN],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    port = json.loads(process.stdout.readline())["address"].rpartition(":")[2]
    found = "/ajax-api/2.0/mlflow/experiments/get-by-name?experiment_name=shown"
    bearer = f"Bearer {TOKEN}"
    assert ask(port, "/")[0] == ask(port, found)[0] == 401
    assert ask(port, "/", Authorization="Bearer 0123456789abcdef-tokeN")[0] == 401
    assert ask(port, "/?token=wrong")[0] == 401
    for host in (f"localhost:{port}", socket.gethostname()):
        assert ask(port, "/", Authorization=bearer, Host=host)[0] == 200
    assert ask(port, "/", Authorization=bearer, Host="evil.example")[0] == 403
    status, _, cookie = ask(port, f"/?token={TOKEN}")
    assert status == 303 and "HttpOnly" in cookie and TOKEN not in cookie
    status, body, _ = ask(port, found, Cookie=cookie.partition(";")[0])
    experiment = json.loads(body)["experiment"]
    assert status == 200 and experiment["name"] == "shown"
    (run,) = (workspace / "mlruns").iterdir()
    note = f"/get-artifact?path=note.txt&run_uuid={run.name}"
    assert ask(port, note, Authorization=bearer)[:2] == (200, "hello")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert out == "" and TOKEN not in err and "Traceback" not in err


def test_beyond_loopback_a_token_is_needed(workspace: Path) -> None:
    for command in ("ui", "serve"):
        for more in ([], ["--token", "short"], ["--token", "sixteen letters and blanks"]):
            words = [command, "--workspace", str(workspace), "--host", "0.0.0.0", *more]
            done = subprocess.run(
                [sys.executable, "-m", "medapps", *words, "--json"],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 2
            assert "token" in json.loads(done.stdout)["error"]
