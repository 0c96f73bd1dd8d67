"""`python -m tests.faults`: disturb medapps in many ways and count what held."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import cycle
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: a pool of threads does not survive a fork

from tests.faults import harness, inputs
from tests.faults.harness import CHEAP, COMMANDS, Count, Shop


def main() -> int:
    """Every kind in turn until its number or its share of the time is used up."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--signals", type=int, default=100)
    parser.add_argument("--disk", type=int, default=60)
    parser.add_argument("--writers", type=int, default=20)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600, help="of all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cheap", action="store_true", help="only the commands of a second")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="medapps_faults_") as folder:
        counts = work(Shop(Path(folder), given.seed), given)
    print(harness.as_json(counts) if given.json else harness.as_table(counts))
    for kind, count in counts.items():
        for failure in count.failures:
            print(f"{kind}: {failure}", file=sys.stderr)
    return int(any(count.failures for count in counts.values()))


def work(shop: Shop, given: argparse.Namespace) -> dict[str, Count]:
    """The counts of every kind; one that runs out of time is tried less often."""
    ends = time.monotonic() + given.seconds
    names = CHEAP if given.cheap else tuple(COMMANDS)
    processes: dict[str, tuple[int, Callable[[Shop, str], str]]] = {
        "kill": (given.kills, harness.killed),
        "signal": (given.signals, harness.interrupted),
        "disk": (given.disk, harness.disk_fault),
        "two writers": (given.writers, harness.two_writers),
    }
    counts = {name: Count() for name in ("bad input", "flipped byte", *processes)}
    left = sum(number > 0 for number, _ in processes.values())
    inputs.warm_up()
    for _ in until(given.inputs, ends, share=0.35 if left or given.flips else 1):
        counts["bad input"].add(*inputs.bad_input(shop))
    full = full_place(shop, names) if given.flips else shop.base
    for _ in until(given.flips, ends, share=0.2 if left else 1):
        counts["flipped byte"].add(*inputs.flipped(shop, full))
    for kind, (number, fault) in processes.items():
        for _, name in zip(until(number, ends, share=1 / max(left, 1)), cycle(names), strict=False):
            counts[kind].add(name, fault(shop, name))
        left -= number > 0
    return counts


def until(number: int, ends: float, share: float) -> Iterable[int]:
    """Counts to a number, or for a share of the time that is left."""
    began = time.monotonic()
    limit = began + share * max(ends - began, 0)
    for index in range(number):
        if index and time.monotonic() > limit:
            return
        yield index


def full_place(shop: Shop, names: tuple[str, ...]) -> Path:
    """A workspace with an artefact of every kind that the commands make."""
    place = shop.place("full")
    for name in ("crop", "label", "recommend"):
        if name in names:
            end = harness.run([*COMMANDS[name], "--force"], place)
            assert end.code == 0, end.text
    return place


if __name__ == "__main__":
    sys.exit(main())
