"""The app of `medapps serve`: vectors, labels and recommendations of users as JSON.

One thread computes, in parts of at most `PART` users, so that a long question does not hold up
short ones; the event loop reads and writes.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Annotated, Any

import numpy as np
import polars as pl
import psutil
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr
from starlette.exceptions import HTTPException

from medapps import __version__
from medapps.crop.idlist import some_of, typed
from medapps.errors import MedappsError
from medapps.serve.following import Loaded, Models
from medapps.serve.guard import App, Receive, Scope, Send
from medapps.serve.models import CROP, LABELLER, RECOMMENDER
from medapps.serve.register import NAMES

LARGEST_BODY = 1 << 20
MOST_USERS = 1000
MOST_ITEMS = 1000
MOST_ROWS = 20_000
"""Users times items of one answer."""
PART = 32
KINDS = {"/vectors": CROP, "/labels": LABELLER, "/recommendations": RECOMMENDER}
PATHS = (*KINDS, "/healthz", "/metrics", "other")
MAKE = {
    CROP: "medapps crop --tier server",
    LABELLER: "medapps label --dim 500",
    RECOMMENDER: "medapps recommend --dim 10",
}
"""The command that registers a model of each kind."""


class Question(BaseModel):
    """Users, by the ids that the graph has for them."""

    model_config = ConfigDict(extra="forbid")
    users: Annotated[list[StrictStr | StrictInt], Field(min_length=1, max_length=MOST_USERS)]


class ListQuestion(Question):
    """Users, and how many items each gets."""

    k: Annotated[StrictInt, Field(ge=1, le=MOST_ITEMS)] = 10


class Server:
    """Answers questions with the models of now, and counts."""

    def __init__(self, models: Models) -> None:
        self.models = models
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds = dict.fromkeys(PATHS, 0.0)
        self.users: Counter[str] = Counter()
        self._computing = ThreadPoolExecutor(1, "computing")

    async def answer(self, path: str, asked: list[str | int], k: int = 10) -> JSONResponse:
        """What the model behind a path says of users, each named once."""
        loaded = self.models.get(KINDS[path])
        if loaded is None:
            kind = KINDS[path]
            alias = self.models.aliases[kind]
            wanted = NAMES[kind] + (f"@{alias}" if alias else "")
            raise MissingModel(f"No model is registered as {wanted}.", fix=f"Run {MAKE[kind]}.")
        users = _ids(asked, loaded)
        self.users[path] += len(users)
        loop, said = asyncio.get_running_loop(), []
        for start in range(0, len(users), PART):
            part = users.slice(start, PART)
            said += await loop.run_in_executor(self._computing, _say, loaded, part, k)
        return JSONResponse({"model": loaded.facts, "users": said})

    def metrics(self) -> str:
        """All counters, as Prometheus reads them."""
        lines = _family("requests_total", "counter", "Requests by path and status.", {
            f'path="{path}",status="{status}"': n for (path, status), n in self.requests.items()
        })  # fmt: skip
        counts: Counter[str] = Counter()
        for (path, _), n in self.requests.items():
            counts[path] += n
        sums = {f'path="{path}"': seconds for path, seconds in self.seconds.items()}
        lines += _family("request_seconds", "summary", "Time to answer.", sums, "_sum")
        lines += [f'medapps_request_seconds_count{{path="{p}"}} {n}' for p, n in counts.items()]
        users = {f'path="{path}"': n for path, n in self.users.items()}
        lines += _family("users_total", "counter", "Users asked for.", users)
        now = [one for kind in KINDS.values() if (one := self.models.get(kind))]
        versions = {
            f'name="{one.version.name}",alias="{one.alias}"': one.version.number for one in now
        }
        lines += _family("model_version", "gauge", "Version that answers.", versions)
        lines += _family("model_loads_total", "counter", "Taken over.", {"": self.models.loads})
        failed = {"": self.models.failures}
        lines += _family("model_failures_total", "counter", "Not taken over.", failed)
        memory = {"": psutil.Process().memory_info().rss}
        lines += _family("resident_memory_bytes", "gauge", "Memory of the process.", memory)
        return "\n".join(lines) + "\n"


class MissingModel(MedappsError):
    """An endpoint has nothing to answer with."""


def make_app(models: Models) -> tuple[App, Server]:
    """The app, which follows the registry while it runs."""
    server = Server(models)

    @asynccontextmanager
    async def following(_: FastAPI) -> AsyncIterator[None]:
        models.follow()
        yield
        models.end()

    app = FastAPI(
        title="medapps", version=__version__, docs_url=None, redoc_url=None, lifespan=following
    )

    @app.post("/vectors")
    async def vectors(question: Question) -> Response:
        """Service vectors of users; null for those that the graph does not know."""
        return await server.answer("/vectors", question.users)

    @app.post("/labels")
    async def labels(question: Question) -> Response:
        """The class of users, with the probability of each class."""
        return await server.answer("/labels", question.users)

    @app.post("/recommendations")
    async def recommendations(question: ListQuestion) -> Response:
        """The k best new items of users; what is popular for those of whom nothing is known."""
        if len(question.users) * question.k > MOST_ROWS:
            text = f"An answer has at most {MOST_ROWS:,} items for all users together."
            raise HTTPException(413, text)
        return await server.answer("/recommendations", question.users, question.k)

    @app.get("/healthz")
    async def healthz() -> Response:
        """Which models answer."""
        return JSONResponse({"status": "ok", "models": served(models)})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(server.metrics(), media_type="text/plain; version=0.0.4")

    @app.exception_handler(MedappsError)
    async def wrong(_: Request, error: MedappsError) -> Response:
        missing = isinstance(error, MissingModel)
        return JSONResponse({"error": error.problem, "fix": error.fix}, 404 if missing else 422)

    @app.exception_handler(RequestValidationError)
    async def unreadable(_: Request, error: RequestValidationError) -> Response:
        found = error.errors()[0]
        where = ".".join(str(part) for part in found["loc"] if part != "body")
        text = f"{where}: {found['msg']}" if where else found["msg"]
        return JSONResponse({"error": text}, 422)

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    return _counting(app, server), server


def served(models: Models) -> dict[str, dict[str, Any] | None]:
    """Path to the model that answers there."""
    found = {path: models.get(kind) for path, kind in KINDS.items()}
    return {path: None if one is None else one.facts for path, one in found.items()}


def _ids(asked: list[str | int], loaded: Loaded) -> pl.Series:
    """The ids in the type of the graph's, each once; refuses what cannot be one."""
    names = pl.Series("user", [str(user) for user in asked], dtype=pl.String)
    names = names.unique(maintain_order=True)
    users = typed(names, loaded.model.users.dtype)
    wrong = names.filter(users.is_null())
    if len(wrong):
        raise MedappsError(f"Users are integers here, which these are not: {some_of(wrong)}.")
    return users


def _say(loaded: Loaded, users: pl.Series, k: int) -> list[dict[str, Any]]:
    return _WORDS[loaded.kind](loaded.model, users, k)


def _vectors(model: Any, users: pl.Series, k: int) -> list[dict[str, Any]]:
    rows = model.table(users, k).to_dicts()
    return [row | {"vector": row["vector"] if row["in_graph"] else None} for row in rows]


def _labels(model: Any, users: pl.Series, k: int) -> list[dict[str, Any]]:
    table = model.table(users, k)
    label, classes = table.columns[1], model.model.classes
    return [
        {
            "user": row["user"],
            "in_graph": row["in_graph"],
            "column": model.model.column,
            "label": row[label],
            "probability": row["probability"],
            "probabilities": {name: row[f"p_{name}"] for name in classes},
        }
        for row in table.to_dicts()
    ]


def _lists(model: Any, users: pl.Series, k: int) -> list[dict[str, Any]]:
    """A user who has every item gets an empty list."""
    table = model.table(users, k)
    columns = {name: table[name].to_list() for name in table.columns}
    starts = np.flatnonzero(table["rank"].to_numpy() == 1).tolist()
    ends = [*starts[1:], len(table)]
    found = {columns["user"][a]: (a, b) for a, b in zip(starts, ends, strict=True)}
    out = []
    for user in users.to_list():
        begin, end = found.get(user, (0, 0))
        items = zip(columns["item"][begin:end], columns["score"][begin:end], strict=True)
        out.append(
            {
                "user": user,
                "in_graph": columns["in_graph"][begin] if end else None,
                "has_purchases": columns["has_purchases"][begin] if end else True,
                "items": [{"item": item, "score": score} for item, score in items],
            }
        )
    return out


_WORDS: dict[str, Callable[[Any, pl.Series, int], list[dict[str, Any]]]] = {
    CROP: _vectors,
    LABELLER: _labels,
    RECOMMENDER: _lists,
}


def _family(
    name: str, kind: str, text: str, values: Mapping[str, float], ending: str = ""
) -> list[str]:
    """One metric: label words to numbers."""
    name = f"medapps_{name}"
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    return lines + [
        f"{name}{ending}{{{words}}} {value}" if words else f"{name}{ending} {value}"
        for words, value in values.items()
    ]


def _counting(app: App, server: Server) -> App:
    """Counts answers by path and status, and how long they took."""

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in PATHS else PATHS[-1]
        began, status = time.perf_counter(), 500

        async def watched(message: Scope) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await app(scope, receive, watched)
        finally:
            server.requests[path, status] += 1
            server.seconds[path] += time.perf_counter() - began

    return counted
