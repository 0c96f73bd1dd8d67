"""`medapps serve` under load: ten recommendations of a catalogue of 20,000 items.

Run: python benchmarks/serve.py [--json] [--workspace bench] [--soak 20000]
A planted shop is trained and registered once in the workspace. Then 1, 8 and 32 clients ask over
loopback, each waiting for its answer, for at most `--seconds` and `--requests` each; a new version
is registered while 8 clients ask. Clients run in one process beside the server: on two cores both
share them. `cpu_ms` is the server's time on a processor per request, which a busy machine changes
less than the time on the clock. `--soak` asks so many more and looks at the server's memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil

ITEMS, USERS, DIM, EACH = 20_000, 4_000, 10, 12
CLIENTS = (1, 8, 32)


@dataclass
class Seen:
    """What clients saw."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0
    versions: list[int] = field(default_factory=list)

    def table(self, elapsed: float) -> dict[str, Any]:
        """In milliseconds."""
        p50, p99 = np.percentile(np.array(self.seconds) * 1e3, [50, 99])
        return {
            "requests": len(self.seconds),
            "failed": self.failed,
            "p50_ms": round(float(p50), 2),
            "p99_ms": round(float(p99), 2),
            "per_second": round(len(self.seconds) / elapsed),
        }


def prepare(root: Path) -> None:
    """A shop whose users take what is near their vector."""
    from medapps.crop.crop import Crop
    from medapps.graph.ids import IdMap
    from medapps.graph.read import TAKES
    from medapps.model.rule import ScoreSpec
    from medapps.recommend.run import train_recommender

    rng = np.random.default_rng(0)
    taste = rng.standard_normal((USERS, DIM)).astype(np.float32)
    kind = rng.standard_normal((ITEMS, DIM)).astype(np.float32)
    near = kind @ taste.T + 2 * rng.gumbel(size=(ITEMS, USERS)).astype(np.float32)
    taken = np.argpartition(-near, EACH, axis=0)[:EACH]  # (EACH, USERS)
    user = np.tile(np.arange(USERS), (EACH, 1))
    bought = pl.DataFrame({"user": user.ravel(), "item": taken.ravel()}).select(
        user=pl.format("user:{}", pl.col("user").cast(pl.String).str.zfill(7)),
        item=pl.format("item:{}", pl.col("item").cast(pl.String).str.zfill(7)),
        timestamp=pl.int_range(pl.len()),
    )
    names = [f"item:{i:07d}" for i in range(ITEMS)] + [f"user:{u:07d}" for u in range(USERS)]
    crop = Crop(
        np.concatenate([kind, taste]),
        IdMap.of(pl.Series(names)),
        DIM,
        "med",
        ScoreSpec(),
        relations=np.zeros((1, DIM), np.float32),
        relation_ids=IdMap.of(pl.Series([TAKES])),
        users=np.arange(ITEMS, ITEMS + USERS, dtype=np.int32),
    )
    train_recommender(crop, bought).model.save(root / "recommender")
    register(root)


def register(root: Path) -> None:
    """One more version of the recommender."""
    from medapps.serve.register import log_recommender
    from medapps.tracking import track

    with track(root, experiment="bench", name="recommender") as run:
        log_recommender(run, root / "recommender", register=True)


async def client(port: int, seen: Seen, number: int, until: float, most: int) -> None:
    """Asks for one user after another on one connection."""
    rng = np.random.default_rng(number)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for user in rng.integers(USERS, size=most).tolist():
        if time.perf_counter() > until:
            break
        body = b'{"users": ["user:%07d"], "k": 10}' % user
        head = b"POST /recommendations HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        began = time.perf_counter()
        try:
            writer.write(head + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            size = re.search(rb"content-length: (\d+)", answer)
            said = json.loads(await reader.readexactly(int(size[1]) if size else 0))
            right = answer.split()[1] == b"200" and len(said["users"][0]["items"]) == 10
            seen.failed += not right
            seen.versions.append(said["model"]["version"] if right else -1)
        except (OSError, asyncio.IncompleteReadError, ValueError):
            seen.failed += 1
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        seen.seconds.append(time.perf_counter() - began)
    writer.close()


def load(port: int, clients: int, seconds: float, requests: int) -> tuple[Seen, dict[str, Any]]:
    """What so many clients see."""

    async def everybody() -> Seen:
        seen, until = Seen(), time.perf_counter() + seconds
        each = max(1, requests // clients)
        await asyncio.gather(*(client(port, seen, n, until, each) for n in range(clients)))
        return seen

    began = time.perf_counter()
    seen = asyncio.run(everybody())
    return seen, seen.table(time.perf_counter() - began)


def memory(port: int) -> float:
    """Megabytes that the server says it holds."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        found = re.search(r"resident_memory_bytes (\d+)", reply.read().decode())
    return round(int(found[1]) / 1e6, 1) if found else 0.0


def replaced(port: int, root: Path) -> dict[str, Any]:
    """Nothing is lost while a new version comes."""
    command = [sys.executable, __file__, "--register", "--workspace", str(root)]
    coming = subprocess.Popen(command)
    whole = Seen()
    while not whole.versions or max(whole.versions) == min(whole.versions):
        seen, _ = load(port, 8, 1.0, 10**6)
        whole.failed += seen.failed
        whole.seconds += seen.seconds
        whole.versions += seen.versions
        if coming.poll() not in (None, 0) or sum(whole.seconds) > 8 * 120:
            break
    coming.wait()
    return {
        "requests": len(whole.seconds),
        "failed": whole.failed,
        "versions": sorted(set(whole.versions)),
        "slowest_ms": round(max(whole.seconds) * 1e3, 1),
    }


def in_python(root: Path) -> float:
    """Milliseconds of one list without a server, the median of 200."""
    from medapps.recommend.recommender import Recommender

    model = Recommender.load(root / "recommender")
    names = model.users.names()
    took = []
    for user in range(220):
        began = time.perf_counter()
        model.recommend(names.slice(user, 1), 10)
        took.append(time.perf_counter() - began)
    return round(float(np.median(took[20:])) * 1e3, 2)


def main() -> None:
    """Prepare, serve, ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--workspace", type=Path, default=Path("bench-serve"))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--soak", type=int, default=0)
    parser.add_argument("--register", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    root = given.workspace
    if given.register:
        register(root)
        return
    if not (root / "recommender").is_dir():
        prepare(root)
    command = [sys.executable, "-m", "medapps", "serve", "--workspace", str(root)]
    server = subprocess.Popen([*command, "--port", "0", "--json", "-q"], stdout=subprocess.PIPE)
    assert server.stdout is not None
    try:
        port = int(json.loads(server.stdout.readline())["address"].rpartition(":")[2])
        found: dict[str, Any] = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
        held = {"start": memory(port)}
        load(port, 1, 2.0, 200)
        watched = psutil.Process(server.pid)
        for count in CLIENTS:
            before = sum(watched.cpu_times()[:2])
            _, table = load(port, count, given.seconds, given.requests)
            spent = sum(watched.cpu_times()[:2]) - before
            found[f"clients_{count}"] = table | {
                "cpu_ms": round(spent / table["requests"] * 1e3, 2)
            }
        held["load"] = memory(port)
        if given.soak:
            found["soak"] = load(port, 8, 600.0, given.soak)[1]
            held["soak"] = memory(port)
        found["replace"] = replaced(port, root)
        held["replace"] = memory(port)
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(30)
    found |= {"memory_mb": held, "exit_code": code, "python_ms": in_python(root)}
    if given.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        print(f"{key:12}", value)


if __name__ == "__main__":
    main()
