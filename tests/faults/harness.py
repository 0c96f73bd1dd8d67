"""Run commands of a tiny shop, disturb them, and say what held.

A case holds when the command ends with a known code and a sentence, nothing half-written can be
seen, and the same command run again gives what an undisturbed run gave.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from medapps.errors import MedappsError
from medapps.store import read_manifest

KINDS = ("graph", "embedding", "crop", "labeller", "recommender", "report")
GOOD_CODES = {0, 2, 130, 143}
HANGS = 120.0
SMALL = ["--no-track", "-q", "--json"]
DATA, WORK = ["--workspace", "ws"], ["--dim", "4", "--workspace", "ws"]
TASK = ["--seeds", "1", "--set", "label.epochs=1", "--set", "recommend.ncf.epochs=1"]
TRAIN = ["train", "--kg", "../shop", "--dims", "4,8", "--epochs", "2", "--set", "train.threads=1"]
COMMANDS: dict[str, list[str]] = {
    "synth": ["data", "synth", "--out", "made", "--preset", "tiny", "--users", "100", *SMALL],
    "train": [*TRAIN, "--seed", "1", *DATA, *SMALL],
    "crop": ["crop", "--dtype", "int8", *WORK, *SMALL],
    "similar": ["similar", "user:0000001", "--approximate", *WORK, *SMALL],
    "baseline": ["baseline", "pca", *WORK, *SMALL],
    "label": ["label", "--predict", "ids.txt", "--out", "out.csv", *TASK, *WORK, *SMALL],
    "recommend": ["recommend", "--users", "ids.txt", "--out", "out.csv", *TASK, *WORK, *SMALL],
    "tracked train": [*TRAIN, "--seed", "2", *DATA, "-q", "--json"],
    "tracked crop": ["crop", "--tier", "phone", "--set", "crop.tiers.phone=4", *DATA, "-q"],
}
CHEAP = ("synth", "train", "crop", "similar")


@dataclass
class Count:
    """How many cases of a kind were tried, and what failed."""

    tried: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, what: str, reason: str) -> None:
        """Count a case; it held when there is no reason."""
        self.tried += 1
        if reason:
            self.failures.append(f"{what}: {reason}")


@dataclass
class End:
    """How a process ended."""

    code: int
    text: str
    seconds: float


def start(words: list[str], place: Path, largest_file: int | None = None) -> subprocess.Popen[str]:
    """The command in a process of its own; no file may grow beyond `largest_file`."""

    def limit() -> None:
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

    environment = os.environ | {"OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    return subprocess.Popen(
        [sys.executable, "-m", "medapps", *words],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=limit,
    )


def finish(process: subprocess.Popen[str], began: float) -> End:
    """Wait for the end; a process that hangs is killed and has the code -1."""
    try:
        text, _ = process.communicate(timeout=HANGS)
    except subprocess.TimeoutExpired:
        process.kill()
        text, _ = process.communicate()
        return End(-1, f"hangs\n{text}", HANGS)
    return End(process.returncode, text, time.monotonic() - began)


def run(words: list[str], place: Path) -> End:
    """The command, undisturbed."""
    return finish(start(words, place), time.monotonic())


def complaint(end: End, also: int | None = None) -> str:
    """What is wrong with the way a command ended; empty when nothing is."""
    if end.code not in GOOD_CODES and end.code != also:
        return f"exit code {end.code}: {end.text.strip()[-300:]}"
    for words in ("Traceback (most recent", "This is a bug"):
        if words in end.text:
            return f"it prints {words!r}: {end.text.strip()[-300:]}"
    return ""


def half_written(place: Path) -> str:
    """The first visible folder or file that is not whole; empty when all are."""
    for folder, kind in artefacts(place):
        try:
            read_manifest(folder, kind=kind)
        except MedappsError as error:
            return f"half-written: {error}"
    out = place / "out.csv"
    if out.exists() and not out.read_bytes().endswith(b"\n"):
        return "half-written: out.csv"
    return ""


def artefacts(place: Path) -> Iterator[tuple[Path, str]]:
    """Every visible saved folder of a place, and its kind."""
    for kind in KINDS:
        room = place / "ws" / f"{kind}s"
        for folder in sorted(room.iterdir()) if room.is_dir() else ():
            if folder.is_dir() and not folder.name.startswith("."):
                yield folder, kind
    if (place / "made").is_dir():
        yield place / "made", "dataset"


def results(place: Path) -> dict[str, str]:
    """The digest of every artefact of a place; of a report, which holds times, its units'."""
    found = {}
    for folder, kind in artefacts(place):
        manifest = read_manifest(folder, kind=kind)
        digest = manifest.about["unit_digest"] if kind == "report" else manifest.digest
        found[str(folder.relative_to(place))] = digest
    if (place / "out.csv").exists():
        found["out.csv"] = (place / "out.csv").read_text()
    return found


def still_running(place: Path) -> str:
    """MLflow runs that nothing works on any more."""
    store = place / "ws" / "mlflow.db"
    if not store.exists():
        return ""
    with closing(sqlite3.connect(store)) as base:
        (number,) = base.execute("select count(*) from runs where status = 'RUNNING'").fetchone()
    return f"{number} runs are left RUNNING" if number else ""


class Shop:
    """A data set, a workspace with one training, and the undisturbed results of every command."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.random = root, random.Random(seed)
        self.base = root / "base"
        self.base.mkdir()
        synth = ["data", "synth", "--out", "../shop", "--preset", "tiny", "--users", "100", *SMALL]
        for words in (synth, [*TRAIN, *DATA, *SMALL]):
            end = run(words, self.base)
            assert end.code == 0, end.text
        (self.base / "ids.txt").write_text("user:0000001\nuser:0000002\n")
        self._truth: dict[str, tuple[dict[str, str], float]] = {}
        self._number = 0

    def place(self, name: str = "") -> Path:
        """A fresh copy of the shop."""
        self._number += 1
        place = self.root / (name or f"place{self._number}")
        shutil.copytree(self.base, place, dirs_exist_ok=True)
        return place

    def truth(self, name: str) -> tuple[dict[str, str], float]:
        """What a command gives when nothing disturbs it, and its seconds."""
        if name not in self._truth:
            place = self.place()
            end = run(COMMANDS[name], place)
            assert end.code == 0, f"{name}: {end.text}"
            self._truth[name] = results(place), end.seconds
            shutil.rmtree(place)
        return self._truth[name]

    def again(self, name: str, place: Path, disturbed: str) -> str:
        """What is wrong after a fault, or with the same command when it is run again."""
        if disturbed or (disturbed := half_written(place)):
            return disturbed
        words = COMMANDS[name] + (["--force"] if (place / "out.csv").exists() else [])
        if (place / "made").exists():
            words = [*words, "--force"]
        end = run(words, place)
        if end.code == 2 and "Go on with --resume" in end.text:  # a stopped training says so
            end = run([*words, "--resume"], place)
        if end.code:
            return f"run again, exit code {end.code}: {end.text.strip()[-300:]}"
        if results(place) != self.truth(name)[0]:
            return "run again, the results differ from those of an undisturbed run"
        return still_running(place)


def struck(shop: Shop, name: str, number: signal.Signals) -> str:
    """A signal at a random moment of a command."""
    _, seconds = shop.truth(name)
    place = shop.place()
    began = time.monotonic()
    process = start(COMMANDS[name], place)
    # before the interpreter has taken over the signals, they end it like any program
    early = 0.0 if number == signal.SIGKILL else min(0.3, seconds / 4)
    time.sleep(early + shop.random.random() * max(seconds - early, 0))
    process.send_signal(number)
    reason = complaint(finish(process, began), also=-9 if number == signal.SIGKILL else None)
    reason = shop.again(name, place, reason)
    shutil.rmtree(place)
    return reason


def killed(shop: Shop, name: str) -> str:
    """SIGKILL at a random moment."""
    return struck(shop, name, signal.SIGKILL)


def interrupted(shop: Shop, name: str) -> str:
    """SIGTERM or SIGINT at a random moment."""
    return struck(shop, name, shop.random.choice((signal.SIGTERM, signal.SIGINT)))


@contextmanager
def disk(folder: Path) -> Iterator[Callable[[str], bool]]:
    """A small disk of its own, where mounting is permitted; call it to mount with new options."""
    folder.mkdir()

    def mount(options: str) -> bool:
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        return subprocess.run(words, capture_output=True).returncode == 0

    mounted = mount("size=64m")
    try:
        yield mount if mounted else lambda _options: False
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        shutil.rmtree(folder)


def disk_fault(shop: Shop, name: str) -> str:
    """A disk that is full or read-only; without the right to mount, files that may not grow."""
    shop.truth(name)
    with disk(shop.root / "disk") as mount:
        place = shop.place("disk")
        room = int(10 ** shop.random.uniform(2, 6))  # 100 bytes to 1 MB
        used = os.statvfs(place)
        held = (used.f_blocks - used.f_bfree) * used.f_frsize
        full = f"remount,size={held + max(room, 4096)}"
        if mount("remount,ro" if shop.random.random() < 0.25 else full):
            end = run(COMMANDS[name], place)
        else:
            end = finish(start(COMMANDS[name], place, room), time.monotonic())
        mount("remount,rw,size=64m")
        return shop.again(name, place, complaint(end))


def two_writers(shop: Shop, name: str) -> str:
    """The same command twice at once: one at least succeeds."""
    shop.truth(name)
    place, began = shop.place(), time.monotonic()
    both = [start(COMMANDS[name], place) for _ in range(2)]
    ends = [finish(process, began) for process in both]
    reason = complaint(ends[0]) or complaint(ends[1])
    if not reason and all(end.code for end in ends):
        reason = f"neither succeeds: {ends[0].text.strip()[-200:]}"
    reason = shop.again(name, place, reason)
    shutil.rmtree(place)
    return reason


def as_table(counts: dict[str, Count]) -> str:
    """Tried, held and failed of every kind."""
    lines = ["| fault | tried | held | failed |", "|---|---|---|---|"]
    for kind, count in counts.items():
        failed = len(count.failures)
        lines.append(f"| {kind} | {count.tried} | {count.tried - failed} | {failed} |")
    return "\n".join(lines)


def as_json(counts: dict[str, Count]) -> str:
    """The same for programs, with the reason of every failure."""
    return json.dumps({k: {"tried": c.tried, "failures": c.failures} for k, c in counts.items()})
