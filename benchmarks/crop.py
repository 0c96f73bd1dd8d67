"""Crops of seven million users: bytes, export beside a plain copy, lookup beside a whole read.

python benchmarks/crop.py --json          (7 million users: 6 GB of disk, a few minutes)
python benchmarks/crop.py --users 100000
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from medapps.arrays import Blocks, open_arrays, write_arrays
from medapps.crop.crop import Crop, load_crop
from medapps.crop.export import Export, export_files
from medapps.crop.similar import similar
from medapps.graph.ids import IdMap
from medapps.model.rule import ScoreSpec

WIDTH = 100
LOOKUPS = 1000
REPEATS = 7
CASES = {
    "10d_int8": (10, "int8", "safetensors"),
    "10d_float32": (10, "float32", "safetensors"),
    "100d_float16": (100, "float16", "safetensors"),
    "100d_float32": (100, "float32", "safetensors"),
    "10d_float32_parquet": (10, "float32", "parquet"),
    "10d_int8_npz": (10, "int8", "npz"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=7_000_000)
    parser.add_argument("--folder", type=Path, default=None, help="where to write (deleted after)")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        result = measure(Path(folder), options.users, options.cases)
    if options.json:
        print(json.dumps(result))
    else:
        show(result)


def measure(folder: Path, users: int, cases: list[str]) -> dict[str, Any]:
    """Every number of this benchmark."""
    source = make_source(folder, users)
    result: dict[str, Any] = {"users": users, "environment": environment(), "cases": {}}
    for name in cases:
        dim, dtype, form = CASES[name]
        print(f"{name} ...", file=sys.stderr)
        result["cases"][name] = export_case(folder, narrowed(source, dim), dtype, form)
        if form == "safetensors":
            result["cases"][name] |= lookup_case(folder / "crop")
        if name == "10d_int8":
            result["similar_seconds"] = similar_case(folder / "crop")
        shutil.rmtree(folder / "crop")
    return result


def make_source(folder: Path, users: int) -> Crop:
    """A table on disk, mapped: a random block again and again, named user_0, user_1, ..."""
    rng = np.random.default_rng(0)
    block = rng.standard_normal((100_000, WIDTH), np.float32)

    def pieces() -> Any:
        for start in range(0, users, len(block)):
            yield block[: users - start]

    write_arrays(folder / "source", {"entities": Blocks((users, WIDTH), "float32", pieces())})
    names = pl.select(pl.format("user_{}", pl.int_range(users))).to_series()
    IdMap.of(names).save(folder / "names")
    return Crop(
        entities=open_arrays(folder / "source")["entities"],
        entity_ids=IdMap.load(folder / "names"),
        dim=WIDTH,
        method="med",
        spec=ScoreSpec(),
        relations=rng.standard_normal((15, WIDTH), np.float32),
        relation_ids=IdMap.of(pl.Series([f"r{i}" for i in range(15)])),
        users=np.arange(users, dtype=np.int32),
    )


def narrowed(source: Crop, dim: int) -> Crop:
    """What `Embedding.crop(dim)` gives: views of the first columns."""
    from dataclasses import replace

    assert source.relations is not None
    return replace(
        source, entities=source.entities[:, :dim], relations=source.relations[:, :dim], dim=dim
    )


def export_case(folder: Path, source: Crop, dtype: str, form: str) -> dict[str, Any]:
    """Export once, then copy the same bytes with the same care (written through to the disk)."""
    np.asarray(source.entities[::8, 0]).sum()  # the source is in the page cache for both
    os.sync()
    with peak_memory() as peak:
        began = time.perf_counter()
        manifest = export_files(source, folder / "crop", Export(dtype=dtype, form=form))
        export_seconds = time.perf_counter() - began
    os.sync()
    began = time.perf_counter()
    copy_through(folder / "crop", folder / "copy")
    copy_seconds = time.perf_counter() - began
    shutil.rmtree(folder / "copy")
    total = manifest.bytes
    maps = ("entities.safetensors", "relations.safetensors")
    vectors = sum(entry["bytes"] for name, entry in manifest.files.items() if name not in maps)
    return {
        "bytes": total,
        **({"mib_without_id_map": round(vectors / 2**20, 2)} if form == "safetensors" else {}),
        "bytes_per_user": round(total / len(source.entity_ids), 2),
        "export_seconds": round(export_seconds, 3),
        "export_mb_per_second": round(total / export_seconds / 1e6, 1),
        "copy_mb_per_second": round(total / copy_seconds / 1e6, 1),
        "source_mb_per_second": round(source.entities.nbytes / export_seconds / 1e6, 1),
        "peak_memory_mib": round(peak() / 2**20, 1),
    }


def copy_through(source: Path, target: Path) -> None:
    """Copy a folder's files and wait until they are on the disk."""
    target.mkdir()
    for path in source.iterdir():
        with path.open("rb") as old, (target / path.name).open("wb") as new:
            shutil.copyfileobj(old, new, 8 * 2**20)
            new.flush()
            os.fsync(new.fileno())


def lookup_case(folder: Path) -> dict[str, Any]:
    """Load and look up 1,000 random users, beside reading the vectors (and names) whole."""
    crop = load_crop(folder)
    rng = np.random.default_rng(1)
    names = crop.entity_ids.names(rng.integers(0, len(crop.entity_ids), LOOKUPS))

    def look_up() -> None:
        vectors, known = load_crop(folder).vectors(names)
        assert known.all() and vectors.shape == (LOOKUPS, crop.width)

    def read_vectors() -> None:
        (folder / "vectors.safetensors").read_bytes()

    def read_all() -> None:
        for path in folder.iterdir():
            path.read_bytes()

    times = [median_seconds(work) for work in (look_up, read_vectors, read_all)]
    (lookup, cpu), (vectors, vectors_cpu), (everything, everything_cpu) = times
    return {
        "lookup_seconds": round(lookup, 5),
        "read_vectors_seconds": round(vectors, 5),
        "read_all_seconds": round(everything, 5),
        "lookup_share_of_reading_vectors": round(lookup / vectors, 4),
        "lookup_share_of_reading_all": round(lookup / everything, 4),
        "lookup_cpu_seconds": round(cpu, 5),
        "lookup_cpu_share_of_reading_vectors": round(cpu / vectors_cpu, 4),
        "lookup_cpu_share_of_reading_all": round(cpu / everything_cpu, 4),
        "cold_lookup_seconds": round(cold_seconds(folder, look_up), 4),
        "cold_read_all_seconds": round(cold_seconds(folder, read_all), 4),
    }


def similar_case(folder: Path) -> float:
    """Seconds of one exact search for 20 neighbours among all users."""
    crop = load_crop(folder)
    name = crop.entity_ids.names(np.array([len(crop.entity_ids) // 2]))
    return round(median_seconds(lambda: similar(crop, name, 20), repeats=3)[0], 3)


def median_seconds(work: Callable[[], object], repeats: int = REPEATS) -> tuple[float, float]:
    """Median time and processor time (steadier on a busy machine), after one call not counted."""
    work()
    times, processor = [], []
    for _ in range(repeats):
        began, busy = time.perf_counter(), time.process_time()
        work()
        times.append(time.perf_counter() - began)
        processor.append(time.process_time() - busy)
    return statistics.median(times), statistics.median(processor)


def cold_seconds(folder: Path, work: Callable[[], object]) -> float:
    """The time of one call after the folder's files were put out of the page cache."""
    for path in folder.iterdir():
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class peak_memory:
    """The most memory of its own (not mapped files) that the process takes on inside the block."""

    def __enter__(self) -> Callable[[], int]:
        self.base = self.peak = _own_bytes()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return lambda: self.peak - self.base

    def _watch(self) -> None:
        while not self.done.wait(0.005):
            self.peak = max(self.peak, _own_bytes())

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()


def _own_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def environment() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "polars": pl.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": [round(x, 2) for x in os.getloadavg()],
    }


def show(result: dict[str, Any]) -> None:
    """The same for people."""
    print(f"{result['users']:,} users, {result['environment']}")
    for name, case in result["cases"].items():
        print(name)
        for key, value in case.items():
            print(f"  {key:34} {value:>14,}")
    if "similar_seconds" in result:
        print(f"one exact search, 10d int8: {result['similar_seconds']} s")


if __name__ == "__main__":
    main()
