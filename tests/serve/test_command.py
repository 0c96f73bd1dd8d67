"""`medapps serve` as a program: one JSON object, signals, names and the token."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.serve.conftest import Shop

pytestmark = pytest.mark.filterwarnings("default")  # those of mlflow and what it imports
TOKEN = "0123456789abcdef-token"


def start(shop: Shop, *words: str, **environment: str) -> tuple[subprocess.Popen[str], Any]:
    """The process, and what it printed."""
    command = [sys.executable, "-m", "medapps", "serve", "--workspace", str(shop.root)]
    process = subprocess.Popen(
        [*command, "--port", "0", "--json", *words],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def ask(address: str, path: str, question: Any = None, **headers: str) -> tuple[int, Any]:
    body = None if question is None else json.dumps(question).encode()
    named = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(address + path, data=body, headers=named)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_it_says_where_it_is_answers_and_ends_with_a_signal(
    number: signal.Signals, code: int, strings: Shop
) -> None:
    process, told = start(strings)
    assert told["status"] == "ok" and told["address"].startswith("http://127.0.0.1:")
    assert told["models"]["/vectors"] == {"name": "medapps-crop", "alias": "phone", "version": 1}
    assert told["models"]["/labels"]["alias"] == "place-dim-4"
    status, said = ask(told["address"], "/recommendations", {"users": strings.users, "k": 3})
    assert status == 200
    expected = strings.recommender.recommend(strings.users[:1], 3)["item"].to_list()
    assert [item["item"] for item in said["users"][0]["items"]] == expected
    assert ask(told["address"], "/healthz", Host="evil.example")[0] == 403
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == "" and "Traceback" not in err


def test_beyond_loopback_every_path_asks_for_the_token(strings: Shop) -> None:
    process, told = start(strings, "--host", "0.0.0.0", MEDAPPS_TOKEN=TOKEN)
    address = told["address"].replace("0.0.0.0", "127.0.0.1")
    for path in ("/healthz", "/metrics", "/openapi.json", "/nowhere", f"/healthz?token={TOKEN}"):
        assert ask(address, path)[0] == 401
    assert ask(address, "/labels", {"users": ["u"]}, Authorization="Bearer wrong")[0] == 401
    bearer = f"Bearer {TOKEN}"
    assert ask(address, "/labels", {"users": ["u"]}, Authorization=bearer)[0] == 200
    assert ask(address, "/healthz", Authorization=bearer, Host="shop.example")[0] == 200
    process.terminate()
    assert TOKEN not in process.communicate(timeout=60)[1]


def test_a_port_that_is_taken_is_an_error_in_a_sentence(strings: Shop) -> None:
    process, told = start(strings)
    words = ["--port", told["address"].rpartition(":")[2], "--workspace", str(strings.root)]
    again = subprocess.run(
        [sys.executable, "-m", "medapps", "serve", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    process.terminate()
    process.communicate(timeout=60)
    assert again.returncode == 2 and "Try --port" in again.stderr
