"""What the server answers is what Python says; wrong questions are refused in a sentence."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import numpy as np
import polars as pl
import psutil
import pytest

from medapps.serve.guard import Guard
from medapps.serve.http import LARGEST_BODY, MOST_USERS
from tests.serve.asking import app_of, ask, asking
from tests.serve.conftest import Shop

pytestmark = pytest.mark.filterwarnings("default")  # those of mlflow and what it imports


def test_lists_are_those_of_python(shop: Shop) -> None:
    app, _ = app_of(shop.root)
    reply = ask(app, "/recommendations", {"users": shop.users, "k": 7})
    assert reply.status == 200
    expected = shop.recommender.recommend(pl.Series("user", shop.users), 7)
    for said, user in zip(reply.json["users"], shop.users, strict=True):
        table = expected.filter(pl.col("user") == user)
        assert said["user"] == user
        assert [item["item"] for item in said["items"]] == table["item"].to_list()
        scores = [item["score"] for item in said["items"]]
        assert scores == pytest.approx(table["score"].to_list(), abs=1e-3)
        for flag in ("in_graph", "has_purchases"):
            assert said[flag] == table[flag][0]
    flags = [(said["in_graph"], said["has_purchases"]) for said in reply.json["users"]]
    assert flags == [(True, True), (True, True), (True, False), (False, False)]


def test_labels_and_vectors_are_those_of_python(shop: Shop) -> None:
    app, _ = app_of(shop.root)
    users = pl.Series("user", shop.users)
    said = ask(app, "/labels", {"users": shop.users}).json["users"]
    expected = shop.labeller.predict(shop.crop, users)
    assert [one["label"] for one in said] == expected["place"].to_list()
    assert [one["in_graph"] for one in said] == [True, True, True, False]
    for name in shop.labeller.classes:
        found = [one["probabilities"][name] for one in said]
        assert found == pytest.approx(expected[f"p_{name}"].to_list(), abs=1e-6)
    said = ask(app, "/vectors", {"users": shop.users}).json["users"]
    vectors, known = shop.crop.vectors(users)
    assert [one["in_graph"] for one in said] == known.tolist()
    assert said[-1]["vector"] is None
    assert np.array_equal(np.array([one["vector"] for one in said[:-1]], np.float32), vectors[:-1])


def test_an_integer_may_be_written_as_a_string(shop: Shop) -> None:
    app, _ = app_of(shop.root)
    words = [str(user) for user in shop.users]
    one = ask(app, "/recommendations", {"users": shop.users}).json
    assert ask(app, "/recommendations", {"users": words}).json == one
    odd = ask(app, "/recommendations", {"users": ["no number"]})
    if isinstance(shop.users[0], int):
        assert odd.status == 422 and "no number" in odd.json["error"]
        huge = ask(app, "/recommendations", {"users": [2**70]})
        assert huge.status == 422
    else:
        assert odd.json["users"][0]["in_graph"] is False


def test_users_are_answered_once_and_in_the_order_asked(strings: Shop) -> None:
    app, _ = app_of(strings.root)
    names = strings.crop.entity_ids.names(np.asarray(strings.crop.users)).to_list()
    asked = [*reversed(names), *names]  # more than are computed at a time
    reply = ask(app, "/recommendations", {"users": asked, "k": 1})
    assert [one["user"] for one in reply.json["users"]] == names[::-1]


@pytest.mark.parametrize(
    ("question", "status", "words"),
    [
        (b"{", 422, "JSON"),
        (b"\xff", 400, ""),
        ({}, 422, "users"),
        ({"users": []}, 422, "users"),
        ({"users": "u"}, 422, "users"),
        ({"users": [1.5]}, 422, "users"),
        ({"users": [True]}, 422, "users"),
        ({"users": [None]}, 422, "users"),
        ({"users": ["u"], "k": 0}, 422, "k"),
        ({"users": ["u"], "k": 10**9}, 422, "k"),
        ({"users": ["u"], "k": "3"}, 422, "k"),
        ({"users": ["u"], "n": 3}, 422, "n"),
        ({"users": ["u"] * (MOST_USERS + 1)}, 422, str(MOST_USERS)),
        ({"users": ["u"] * 900, "k": 900}, 413, "20,000"),
    ],
    ids=str,
)
def test_wrong_questions_are_refused_in_json(question, status, words, strings: Shop) -> None:
    app, _ = app_of(strings.root)
    reply = ask(app, "/recommendations", question)
    assert reply.status == status
    assert words in reply.json["error"]


def test_a_long_body_is_refused_whether_it_says_so_or_not(strings: Shop) -> None:
    app = Guard(app_of(strings.root)[0], largest=LARGEST_BODY)
    question = {"users": ["x" * LARGEST_BODY]}
    assert ask(app, "/vectors", question).status == 413
    assert ask(app, "/vectors", question, chunks=9).status == 413
    assert ask(app, "/vectors", {"users": ["x" * 1000]}).status == 200


def test_without_a_model_the_command_that_makes_it_is_named(tmp_path: Path) -> None:
    app, _ = app_of(tmp_path)
    reply = ask(app, "/labels", {"users": ["u"]})
    assert reply.status == 404
    assert "medapps-labeller" in reply.json["error"] and "medapps label" in reply.json["fix"]
    health = ask(app, "/healthz")
    assert health.status == 200 and health.json["models"]["/labels"] is None


def test_counters_follow_what_was_asked(strings: Shop) -> None:
    app, _ = app_of(strings.root)
    ask(app, "/labels", {"users": strings.users})
    ask(app, "/labels", {"users": []})
    ask(app, "/nowhere")
    text = ask(app, "/metrics").body.decode()
    assert 'medapps_requests_total{path="/labels",status="200"} 1' in text
    assert 'medapps_requests_total{path="/labels",status="422"} 1' in text
    assert 'medapps_requests_total{path="other",status="404"} 1' in text
    assert 'medapps_users_total{path="/labels"} 4' in text
    assert 'medapps_request_seconds_count{path="/labels"} 2' in text
    assert 'medapps_model_version{name="medapps-crop",alias="phone"} 1' in text
    for line in text.splitlines():
        assert line.startswith("# ") or re.fullmatch(r"\w+(\{[^}]*\})? [0-9.e+-]+", line), line


def test_a_new_version_is_taken_over_without_losing_a_request(strings: Shop) -> None:
    app, models = app_of(strings.root)
    before = ask(app, "/healthz").json["models"]["/recommendations"]["version"]
    done = threading.Event()

    def replace() -> None:
        strings.publish(strings.recommender, f"again-{before}")
        models.check()
        done.set()

    async def load() -> list[tuple[int, int]]:
        found = []
        changing = threading.Thread(target=replace)
        changing.start()
        while not done.is_set():
            asked = (asking(app, "/recommendations", {"users": strings.users}) for _ in range(8))
            for reply in await asyncio.gather(*asked):
                found.append((reply.status, reply.json["model"]["version"]))
        changing.join()
        last = await asking(app, "/recommendations", {"users": strings.users})
        return [*found, (last.status, last.json["model"]["version"])]

    found = asyncio.run(load())
    assert {status for status, _ in found} == {200}
    versions = [version for _, version in found]
    assert versions[0] == before and versions[-1] == before + 1
    assert versions == sorted(versions)


def test_a_version_that_cannot_be_opened_leaves_the_old_one(strings: Shop) -> None:
    said: list[str] = []
    app, models = app_of(strings.root)
    models._say = said.append
    before = ask(app, "/healthz").json["models"]["/recommendations"]["version"]
    strings.publish(strings.recommender, f"broken-{before}")
    newest = max((strings.root / "mlruns" / "models").glob("*"), key=lambda p: p.stat().st_mtime)
    (file,) = newest.glob("artifacts/artifacts/*/parts.safetensors")
    file.write_bytes(file.read_bytes()[:-9] + b"\x00" * 9)
    for _ in range(3):
        models.check()
    assert len(said) == 1 and "medapps-recommender" in said[0]
    assert models.failures == 1
    reply = ask(app, "/recommendations", {"users": strings.users})
    assert reply.status == 200 and reply.json["model"]["version"] == before
    strings.publish(strings.recommender, f"mended-{before}")
    models.check()
    assert ask(app, "/healthz").json["models"]["/recommendations"]["version"] == before + 2


def test_memory_is_flat_over_thousands_of_requests(strings: Shop) -> None:
    app, _ = app_of(strings.root)

    async def load(count: int) -> int:
        for _ in range(count):
            await asking(app, "/recommendations", {"users": strings.users})
        return psutil.Process().memory_info().rss

    first = asyncio.run(load(500))
    assert asyncio.run(load(2000)) - first < 8 * 2**20
