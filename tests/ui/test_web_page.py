"""A browser on the page of `medapps export --web`: its lists are those of Python, offline too.

Runs where chromium, node and playwright-core are: `make ui-test` brings them.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from medapps.recommend.recommender import Recommender
from medapps.serve.web.lists import Page
from medapps.serve.web.write import Wish, export_web
from tests.serve.shops import Shop, check_same, shop
from tests.ui.test_ui import CHROMIUM, LIBRARY, pytestmark  # noqa: F401  (skips without them)

SCRIPT = Path(__file__).with_name("page.mjs")


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and says nothing."""

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def served(folder: Path, port: int = 0) -> Iterator[int]:
    """A static server of a folder on loopback; its port."""
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def use(
    made: Shop, port: int, profile: Path, users: list[str], bought: list[int], newer: bool = False
) -> Any:
    """What the page shows to these users and to somebody new who has these items."""
    names = made.found.sizes[0].model.items.names().cast(pl.String).to_list()
    rows = dict(zip(users, made.rows(*users), strict=True)) if len(users) > 1 else {users[0]: 0}
    given = {
        "library": str(LIBRARY),
        "chromium": CHROMIUM,
        "profile": str(profile),
        "address": f"http://127.0.0.1:{port}/",
        "users": [{"name": name, "row": row} for name, row in rows.items()],
        "chosen": [{"id": names[row], "row": row} for row in bought],
        "newer": newer,
        "picture": os.environ.get("MEDAPPS_PAGE_PICTURE"),
        "timeout": 60_000,
    }
    done = subprocess.run(
        ["node", str(SCRIPT), json.dumps(given)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["errors"] == [] and found["outside"] == []
    assert not found["wide"], "the page is wider than a phone"
    return found


def check_user(shown: dict[str, Any], model: Recommender, row: int, titles: pl.Series) -> None:
    """A list of the page is the one of `medapps recommend --user`, with names and reasons."""
    table = model.recommend(model.users.names(np.array([row])), 10)
    items = table["item"].cast(pl.String).to_list()
    check_same(shown["items"], shown["scores"], items, table["score"].to_list())
    if shown["items"] != items:
        return  # equal scores changed places
    named = titles.gather(model.items.ids(table["item"])).to_list()
    assert shown["names"] == [title or item for title, item in zip(named, items, strict=True)]
    why = model.why(table).filter(kind="purchase")
    for item, reasons in zip(table["item"], shown["reasons"], strict=True):
        assert reasons == why.filter(item=item)["reason"].to_list()


@pytest.mark.parametrize("integers", [False, True], ids=["strings", "integers"])
def test_the_page_shows_the_lists_of_python_and_works_without_its_server(
    tmp_path: Path, integers: bool
) -> None:
    made, folder = shop(integers), tmp_path / "page"
    about = export_web(made.found, folder, Wish(dtype="float32")).about
    users = [made.with_both, made.in_graph_alone, made.bought_alone]
    (alone,) = made.rows(made.bought_alone)
    bought = made.sizes[2].purchases[alone].indices.tolist()
    with served(folder) as port:
        first = use(made, port, tmp_path / "profile", users, bought)
    assert first["dims"] == [2, 4] and made.found.titles is not None
    for name, row in zip(users, made.rows(*users), strict=True):
        for shown, size in zip(first["users"][name], about["sizes"], strict=True):
            model = made.sizes[shown["dim"]]
            check_user(shown, model, row, made.found.titles)
            assert shown["quality"] == "0.250" and shown["time"].endswith(" ms")
            assert shown["bytes"] == f"{size['bytes'] / 1000:.0f} kB"
    moved = first["users"][made.with_both]
    assert (
        moved[0]["items"] != moved[1]["items"] and "Against the list before" in moved[1]["change"]
    )
    model = made.sizes[2]
    popular = model.recommend(["stranger"] if not integers else [-1], 10)["item"]
    assert first["fresh"][0]["items"] == popular.cast(pl.String).to_list()
    for shown in first["fresh"][1:]:  # somebody new is like the user whom the graph does not know
        check_user(shown, made.sizes[shown["dim"]], alone, made.found.titles)
    again = use(made, port, tmp_path / "profile", users, bought)  # nobody answers any more
    kept = ("items", "scores", "names", "reasons", "bytes")
    for name in users:
        for one, other in zip(first["users"][name], again["users"][name], strict=True):
            assert {key: one[key] for key in kept} == {key: other[key] for key in kept}
    assert again["fresh"][-1]["items"] == first["fresh"][-1]["items"]


def test_the_page_of_one_user_with_int8_shows_what_its_folder_holds(tmp_path: Path) -> None:
    made, folder = shop(), tmp_path / "page"
    export_web(made.found, folder, Wish(for_user=made.with_both))
    page, names = Page.open(folder), made.sizes[2].items.names()
    with served(folder) as port:
        found = use(made, port, tmp_path / "profile", [made.with_both], [5, 11])
    for shown in found["users"][made.with_both]:
        ids, scores = page.lists(shown["dim"], np.zeros(1, int))
        check_same(shown["items"], shown["scores"], names.gather(ids[0]).to_list(), scores[0])
    for shown in found["fresh"][1:]:
        ids, scores = page.newcomer(shown["dim"], np.array([5, 11]))
        check_same(shown["items"], shown["scores"], names.gather(ids).to_list(), scores)


def test_a_page_that_was_written_again_is_offered_and_taken_over(tmp_path: Path) -> None:
    made, folder, profile = shop(), tmp_path / "page", tmp_path / "profile"
    export_web(made.found, folder, Wish(for_user=made.with_both))
    with served(folder) as port:
        first = use(made, port, profile, [made.with_both], [5])
        assert first["data"].endswith(made.with_both)
        export_web(made.found, folder, Wish(for_user=made.in_graph_alone), force=True)
        found = use(made, port, profile, [made.in_graph_alone], [5], newer=True)
    assert found["old"] == first["data"] and found["data"].endswith(made.in_graph_alone)
    ids, _ = Page.open(folder).lists(2, np.zeros(1, int))
    names = made.sizes[2].items.names().gather(ids[0]).to_list()
    assert found["users"][made.in_graph_alone][0]["items"] == names
    again = use(made, port, profile, [made.in_graph_alone], [5])  # offline, the new one
    assert again["old"] == found["data"]
