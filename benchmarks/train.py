"""Speed of training: MED against one model, against PyKEEN, and against what the machine can do.

    python benchmarks/train.py --json            # everything, about five minutes on two quiet cores
    python benchmarks/train.py --quick           # a minute, for a first look

Ratios come from rounds that alternate between the things compared, so that a busy machine disturbs
both alike; the median of the rounds is reported. `*_cpu` are the same ratios in processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np

from medapps.graph.graph import KnownTriples
from medapps.model.rules import RULES
from medapps.train.batches import Sampler, sampler_of
from medapps.train.config import MedConfig
from medapps.train.loop import LOOK
from medapps.train.loss.med import SubModels, Weights
from medapps.train.med import MedStep
from medapps.train.memory import keep_pages, peak_rss_bytes
from medapps.train.step import PHASES, Engine, Model, new_model

import torch  # isort: skip  (medapps sets how threads wait before torch starts them)

CPU = torch.device("cpu")
FB15K237 = (14_541, 237, 272_115)


@dataclass
class Contender:
    """A training that can do some more steps and remembers how long they took."""

    step: MedStep
    models: SubModels
    sampler: Sampler
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    done: int = 0

    def run(self, steps: int, *, record: bool = True) -> None:
        wall, cpu = perf_counter(), process_time()
        for _ in range(steps):
            self.step.engine.clock.mark(None)
            batch = self.sampler.batch(0, self.done % self.sampler.steps)
            self.step.engine.clock.mark("sample")
            self.step(batch, self.models, 0.1, self.done, value=self.done % LOOK == 0)
            self.done += 1
        if record:
            self.wall.append((perf_counter() - wall) / steps)
            self.cpu.append((process_time() - cpu) / steps)


def contender(
    config: MedConfig,
    triples: np.ndarray,
    entities: int,
    relations: int,
    like: Model | None = None,
) -> Contender:
    """A training on made-up triples; `like` lends its tables, so that a million rows exist once."""
    if like is None:
        model = new_model(config, entities, relations, 0)
    else:
        small = new_model(config, 1, relations, 0)
        square = torch.zeros(entities, len(config.dims))
        optimiser = replace(small.entity_optimiser, state={"square": square})
        tables = like.entities, like.relations
        model = replace(small, entities=tables[0], relations=tables[1], entity_optimiser=optimiser)
    known = KnownTriples.of(triples, entities) if config.sampling.filter_known else None
    return Contender(
        MedStep(Engine(model), Weights.of(config, bounded=model.scorer.measure.is_distance)),
        SubModels.of(config, 1.0, CPU),
        sampler_of(triples, entities, config, 0, known),
    )


def made_up(entities: int, relations: int, triples: int) -> np.ndarray:
    """int32 (triples, 3), uniform."""
    draws = np.random.default_rng(0)
    ends = draws.integers(0, entities, (triples, 3), np.int32)
    ends[:, 1] = draws.integers(0, relations, triples, np.int32)
    return ends


def compare(one: Contender, other: Contender, rounds: int, steps: int) -> tuple[float, float]:
    """Median over rounds of one's time over the other's: wall clock and processor."""
    for c in (one, other):
        c.run(3, record=False)
        c.step.engine.clock.seconds.update(dict.fromkeys(PHASES, 0.0))
    for _ in range(rounds):
        one.run(steps)
        other.run(steps)
    wall = median(a / b for a, b in zip(one.wall, other.wall, strict=True))
    return wall, median(a / b for a, b in zip(one.cpu, other.cpu, strict=True))


def machine() -> dict[str, float]:
    """Matrix-product and memory speed of this machine, now."""
    a, b = torch.randn(1024, 512), torch.randn(512, 1024)
    source, target = torch.zeros(2**26), torch.empty(2**26)

    def best(work: Any, repeats: int) -> float:
        work()
        times = []
        for _ in range(repeats):
            began = perf_counter()
            work()
            times.append(perf_counter() - began)
        return min(times)

    return {
        "gemm_gflops": 2 * 1024 * 512 * 1024 / best(lambda: a @ b, 20) / 1e9,
        "copy_gbytes_per_second": 2 * 4 * 2**26 / best(lambda: target.copy_(source), 5) / 1e9,
    }


def fractions(c: Contender, config: MedConfig, speed: dict[str, float]) -> dict[str, Any]:
    """Seconds per step and the share of the machine's speed, by phase.

    Products count three multiplications of (positives x width x negatives); traffic counts every
    row that must be read or written once.
    """
    width, n = config.dims[-1] * RULES[config.scorer].REALS[0], len(config.dims)
    rows = 2 * config.sampling.batch + config.sampling.negatives * -(
        -config.sampling.batch // config.sampling.chunk
    )
    steps = c.done - 3
    flops = 3 * 2 * config.sampling.batch * config.sampling.negatives * width
    traffic = {
        "gather": 4 * width * 2 * (rows + config.sampling.batch),
        "loss": 4 * n * config.sampling.batch * config.sampling.negatives * 2,
        "update": 4 * width * 3 * (rows + config.sampling.batch),
    }
    out: dict[str, Any] = {}
    for phase in PHASES:
        seconds = c.step.engine.clock.seconds[phase] / steps
        out[phase] = {"milliseconds": 1e3 * seconds}
        if phase == "score":
            out[phase]["of_gemm"] = flops / seconds / 1e9 / speed["gemm_gflops"]
        elif phase in traffic:
            moved = traffic[phase] / seconds / 1e9
            out[phase]["of_memory"] = moved / speed["copy_gbytes_per_second"]
    return out


@contextmanager
def pykeen(triples: int, dim: int, threads: int) -> Iterator[Callable[[], list[float]] | None]:
    """A function that trains PyKEEN for an epoch in a process of its own: seconds, CPU seconds."""
    if find_spec("pykeen") is None:
        yield None
        return
    numbers = (*FB15K237[:2], triples, dim, 64, 1024, threads)
    environment = {key: value for key, value in os.environ.items() if key != "GOMP_SPINCOUNT"}
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("pykeen_epochs.py")), *map(str, numbers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        talk = process.stdin, process.stdout

        def epoch() -> list[float]:
            print("again", file=talk[0], flush=True)
            return list(json.loads(talk[1].readline()))

        yield epoch
        process.stdin.close()


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything, as one dictionary."""
    torch.set_num_threads(arguments.threads)
    keep_pages()
    rounds, steps = (3, 5) if arguments.quick else (9, 20)
    shape = {"batch": 1024, "chunk": 1024, "negatives": 64}
    shape |= {"scorer": arguments.scorer} | ({"norm": arguments.norm} if arguments.norm else {})
    result: dict[str, Any] = {
        "scorer": arguments.scorer,
        "norm": MedConfig(**shape).norm,
        "threads": arguments.threads,
        "load": os.getloadavg()[0],
    }
    result |= machine()
    with torch.no_grad():
        entities = arguments.entities
        triples = made_up(entities, 15, 400_000)
        three = MedConfig(dims=(10, 100, 500), **shape)
        one = MedConfig(dims=(500,), **shape)
        med = contender(three, triples, entities, 15)
        single = contender(one, triples, entities, 15, like=med.step.engine.model)
        ratio, ratio_cpu = compare(med, single, rounds, steps)
        result |= {
            "entities": entities,
            "triples_per_second": 1024 / median(med.wall),
            "triples_per_cpu_second": 1024 / median(med.cpu),
            "single_triples_per_second": 1024 / median(single.wall),
            "med3_over_single": ratio,
            "med3_over_single_cpu": ratio_cpu,
            "phases": fractions(med, three, result),
            "peak_rss_bytes": peak_rss_bytes(),
        }
        del med, single
        triples = made_up(*FB15K237)
        many = MedConfig(dims=tuple(range(10, 641, 10)), **shape)
        full = MedConfig(dims=(640,), **shape)
        all64 = contender(many, triples, *FB15K237[:2])
        alone = contender(full, triples, *FB15K237[:2])
        ratio, ratio_cpu = compare(all64, alone, rounds, max(2, steps // 4))
        result |= {
            "n64_over_single": ratio,
            "n64_over_single_cpu": ratio_cpu,
            "n64_phases": fractions(all64, many, result),
        }
        if arguments.scorer == "transe":
            result |= times_pykeen(three, triples, rounds=2 if arguments.quick else 3)
        if arguments.sweep:
            result["milliseconds_per_thousand_triples"] = by_entities(shape, steps)
            result["cpu_seconds_per_epoch"] = by_triples(shape)
            if arguments.plot:
                plot_sweep(result, arguments.plot)
    return result


def times_pykeen(config: MedConfig, triples: np.ndarray, rounds: int) -> dict[str, Any]:
    """Our triples/s with three sub-models over PyKEEN's with one, on a graph like FB15k-237."""
    size = 8 * 1024
    with pykeen(size, config.dims[-1], torch.get_num_threads()) as epoch:
        if epoch is None:
            return {"times_pykeen": None, "times_pykeen_cpu": None}
        ours = contender(config, triples, *FB15K237[:2])
        ours.run(3, record=False)
        epoch()
        theirs = []
        for _ in range(rounds):
            ours.run(20)
            theirs.append(epoch())
    mine = zip(ours.wall, ours.cpu, strict=True)
    ratios = [
        [
            peer / size / (own / config.sampling.batch)
            for peer, own in zip(pair, own_pair, strict=True)
        ]
        for pair, own_pair in zip(theirs, mine, strict=True)
    ]
    return {
        "times_pykeen": median(r[0] for r in ratios),
        "times_pykeen_cpu": median(r[1] for r in ratios),
        "pykeen_triples_per_second": size / median(t[0] for t in theirs),
    }


def by_entities(shape: dict[str, Any], steps: int) -> dict[str, float]:
    """Milliseconds per thousand triples at several sizes of the table, in rounds that alternate."""
    config = MedConfig(dims=(10, 100, 500), **shape)
    sizes = (100_000, 300_000, 1_000_000, 2_000_000)
    largest = contender(config, made_up(sizes[-1], 15, 400_000), sizes[-1], 15)
    runners = {}
    for size in sizes:  # a smaller graph uses the first rows of the largest table
        whole = largest.step.engine.model
        part = replace(whole, entities=whole.entities[:size])
        runners[size] = contender(config, made_up(size, 15, 400_000), size, 15, like=part)
        runners[size].run(3, record=False)
    for _ in range(5):
        for runner in runners.values():
            runner.run(steps)
    return {str(size): 1e6 * median(r.wall) / config.sampling.batch for size, r in runners.items()}


def by_triples(shape: dict[str, Any]) -> dict[str, float]:
    """Processor seconds of a whole epoch, for more and more triples of 200 thousand entities."""
    config = MedConfig(dims=(10, 100, 500), **shape)
    out, tables = {}, None
    for size in (100_000, 300_000, 1_000_000, 2_000_000):
        runner = contender(config, made_up(200_000, 15, size), 200_000, 15, like=tables)
        tables = runner.step.engine.model
        runner.run(3, record=False)
        runner.run(runner.sampler.steps)
        out[str(size)] = runner.cpu[0] * runner.sampler.steps
    return out


def plot_sweep(result: dict[str, Any], path: Path) -> None:
    """Time per thousand triples over entities, and of an epoch over triples."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axes, key, over, unit in zip(
        figure.subplots(1, 2),
        ("milliseconds_per_thousand_triples", "cpu_seconds_per_epoch"),
        ("entities", "triples"),
        ("milliseconds per thousand triples", "processor seconds per epoch"),
        strict=True,
    ):
        x, y = np.array([(float(a), b) for a, b in result[key].items()]).T
        axes.plot(x, y, "o-")
        if over == "triples":
            axes.plot(x, x * (y / x).mean(), "--", lw=1, label="in proportion")
            axes.legend()
        axes.set(xlabel=over, title=unit, xlim=(0, None), ylim=(0, None))
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--sweep", action="store_true", help="also 100 thousand to 2 million rows")
    parser.add_argument("--plot", type=Path, help="write a picture of the sweep")
    parser.add_argument("--entities", type=int, default=1_000_000, help="rows of the large table")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--scorer", choices=tuple(RULES), default="transe")
    parser.add_argument("--norm", help="how the scorer measures; else its usual way")
    result = measure(arguments := parser.parse_args())
    if arguments.json:
        json.dump(result, sys.stdout, indent=1)
        print()
        return
    for name, value in result.items():
        print(f"{name:28} {value if not isinstance(value, float) else round(value, 3)}")


if __name__ == "__main__":
    main()
