"""Asks an ASGI app without a network."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from medapps.serve.following import Models
from medapps.serve.guard import App
from medapps.serve.http import make_app
from medapps.serve.models import CROP, LABELLER, RECOMMENDER

ALL = (CROP, LABELLER, RECOMMENDER)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(app: App, path: str, question: Any = None, *, chunks: int = 1, **headers: str) -> Reply:
    """One request: POST of a question as JSON (bytes go as they are), or GET without one."""
    return asyncio.run(asking(app, path, question, chunks=chunks, **headers))


async def asking(
    app: App, path: str, question: Any = None, *, chunks: int = 1, **headers: str
) -> Reply:
    body = question if isinstance(question, bytes) else json.dumps(question).encode()
    size = -(-len(body) // chunks)
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    named = {"host": "localhost:8000", "content-type": "application/json"} | headers
    if chunks == 1:
        named.setdefault("content-length", str(len(body)))
    route, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET" if question is None else "POST",
        "scheme": "http",
        "path": route,
        "raw_path": route.encode(),
        "query_string": query.encode(),
        "headers": [(key.replace("_", "-").encode(), v.encode()) for key, v in named.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    sent: list[Any] = []

    async def receive() -> Any:
        part = parts.pop(0) if parts else b""
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    found = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
    return Reply(sent[0]["status"], found, b"".join(m.get("body", b"") for m in sent[1:]))


def app_of(root: Any, aliases: dict[str, str | None] | None = None) -> tuple[App, Models]:
    """The app on a workspace, with its models."""
    models = Models(root, aliases or dict.fromkeys(ALL), lambda text: None)
    models.check()
    return make_app(models)[0], models
