"""Who may ask a server: names under which it is asked, a token, and how much may be sent.

An ASGI layer around any app: that of `medapps serve`, and MLflow's behind `medapps ui`.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import re
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

from medapps.errors import MedappsError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
SHORTEST = 16
_COOKIE, _ASK = "medapps", "www-authenticate"
_MAKE_ONE = 'Make one: export MEDAPPS_TOKEN="$(openssl rand -hex 32)"'


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_token(host: str, token: str | None) -> str | None:
    """The token; refused when it is missing beyond loopback, short, or no word of a header."""
    if not token:
        if is_loopback(host):
            return None
        raise MedappsError(
            f"Others can reach {host}, so that a token is needed (--token, or MEDAPPS_TOKEN).",
            fix=_MAKE_ONE,
        )
    if not re.fullmatch(r"[!-~]+", token) or len(token) < SHORTEST:
        raise MedappsError(
            f"A token has at least {SHORTEST} letters, digits or signs of ASCII.", fix=_MAKE_ONE
        )
    return token


def listening(host: str, port: int) -> socket.socket:
    """A socket on which a server listens; refuses an address that is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise MedappsError(
            f"{address_of(host, port)} cannot be listened on: {error.strerror}.",
            fix="Is the port taken? Try --port.",
        ) from error


def address_of(host: str, port: int) -> str:
    """The address that people open."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(app: App, place: socket.socket) -> None:
    """Answer until a signal comes, finish what was asked, then raise what the signal means."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=10,
        limit_concurrency=1000,
    )
    uvicorn.Server(config).run(sockets=[place])


@dataclass(frozen=True)
class Guard:
    """Lets through who asks under a known name and with the token, if there is one."""

    app: App
    token: str | None = None
    hosts: tuple[str, ...] | None = None
    """Names, or None for all; without a token they keep web pages out (DNS rebinding)."""
    browser: bool = False
    """Whether `?token=` is taken once and kept in a cookie."""
    largest: int | None = None
    """Bytes of a request's body."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        if self.hosts is not None and _name(headers.get("host", "")) not in self.hosts:
            await _refuse(scope, send, 403, "This server is not known under that name.")
        elif self.browser and (there := self._entered(scope)):
            cookie = f"{_COOKIE}={self._mark}; HttpOnly; SameSite=Strict; Path=/"
            await _refuse(scope, send, 303, "Welcome.", location=there, **{"set-cookie": cookie})
        elif not self._is_known(headers):
            words = {"www-authenticate": "Bearer"}
            await _refuse(
                scope, send, 401, "A token is needed: Authorization: Bearer TOKEN.", **words
            )
        elif int(_digits(headers.get("content-length"))) > (self.largest or 2**63):
            await _refuse(scope, send, 413, f"A request has at most {self.largest:,} bytes.")
        else:
            await self.app(scope, self._counted(receive), send)

    @property
    def _mark(self) -> str:
        """What the cookie holds: not the token, since other servers of the host see cookies."""
        return hashlib.sha256(f"medapps cookie {self.token}".encode()).hexdigest()

    def _is_known(self, headers: dict[str, str]) -> bool:
        if self.token is None:
            return True
        kind, _, word = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(word.strip(), self.token):
            return True
        return self.browser and _same(_cookie(headers.get("cookie", "")), self._mark)

    def _entered(self, scope: Scope) -> str | None:
        """Where a page that was opened with the right `?token=` goes on."""
        asked = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        given = dict(asked).get("token")
        if self.token is None or given is None or not _same(given, self.token):
            return None
        rest = urlencode([pair for pair in asked if pair[0] != "token"])
        path = "/" + scope["path"].lstrip("/")  # two slashes would lead to another host
        return urlencode({"": path}, safe="/")[1:] + (f"?{rest}" if rest else "")

    def _counted(self, receive: Receive) -> Receive:
        """Breaks off a body that is longer than it may be and did not say so."""
        if self.largest is None:
            return receive
        left = self.largest

        async def counted() -> Scope:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                from starlette.exceptions import HTTPException

                raise HTTPException(413, f"A request has at most {self.largest:,} bytes.")
            return message

        return counted


def _name(host: str) -> str:
    """The host without its port."""
    return re.sub(r":\d+$", "", host).lower()


def _digits(text: str | None) -> str:
    return text if text and re.fullmatch(r"\d{1,18}", text) else "0"


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(_COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


async def _refuse(scope: Scope, send: Send, status: int, text: str, **headers: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    named = {"content-type": "application/json", **headers}
    raw = [(key.encode(), value.encode("latin-1")) for key, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": json.dumps({"error": text}).encode()})
