"""`medapps doctor`: what this machine offers, and what would be slow or fail on it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from medapps import __version__
from medapps.cli.common import Job, Result, command
from medapps.errors import MedappsError

PACKAGES = ("torch", "numpy", "polars", "scikit-learn", "implicit", "mlflow", "pydantic", "typer")
EXTRAS = {"faiss": "ann", "onnxruntime": "export", "transformers": "text"}
_GIB = 2**30


@command("doctor", example="medapps doctor")
def doctor(
    job: Job,
    repair: Annotated[
        bool, typer.Option("--repair", help="Replace a broken MLflow store; the old one is kept.")
    ] = False,
) -> Result:
    """Look at this machine and say what would be slow or fail on it, and what mends it."""
    if repair:
        from medapps.tracking import repair as repair_store
        from medapps.tracking.sqlite import check_places

        check_places(job.root)
        aside = repair_store(job.root, job.say)
        if aside is None:
            job.say(f"The MLflow store of {job.root} needs no repair.")
        else:
            job.say(f"The MLflow store was broken and is now {aside}; a new one was made.")
    findings = examine(job.root, tracked=job.tracked)
    table = Table(Column(), Column(style="bold"), Column(), Column(), box=None, show_header=False)
    good, bad = Text("ok", "green"), Text("no", "red")
    for finding in findings:
        mark = good if not finding.problem else bad if finding.fatal else Text("!")
        table.add_row(mark, finding.name, finding.value, finding.problem or "")
    return Result(
        {
            "artifact": None,
            "findings": {finding.name: finding.value for finding in findings},
            "problems": [f"{f.name}: {f.problem}" for f in findings if f.problem],
        },
        [table],
        exit_code=2 if any(finding.fatal for finding in findings) else 0,
    )


@dataclass(frozen=True)
class Finding:
    """One examined thing."""

    name: str
    value: str
    problem: str | None = None
    """What is wrong, with the command that mends it; None when all is well."""
    fatal: bool = False
    """Whether commands will fail, not merely be slow."""


def examine(workspace: Path, *, tracked: bool = True) -> list[Finding]:
    """Look at versions, threads, memory, disk, allocator and the MLflow store."""
    findings = [
        Finding("medapps", __version__),
        Finding("python", platform.python_version()),
        *(_package(name) for name in PACKAGES),
        *(_extra(module, extra) for module, extra in EXTRAS.items()),
        _cores(),
        _blas(),
        _memory(),
        _disk(workspace),
        _writable(workspace),
        _allocator(),
        _device(),
    ]
    if tracked:
        findings.append(_store(workspace))
    return findings


def _package(name: str) -> Finding:
    try:
        return Finding(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        mend = "pip install -c constraints.txt -e ."
        return Finding(name, "missing", f"Install it: {mend}", fatal=True)


def _extra(module: str, extra: str) -> Finding:
    found = importlib.util.find_spec(module) is not None
    return Finding(module, "present" if found else f"absent (pip install 'medapps[{extra}]')")


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cores() -> Finding:
    import psutil

    busy = psutil.cpu_percent(0.2)
    problem = None
    if busy > 80:
        problem = f"They are {busy:.0f} % busy with other work; training will take longer."
    return Finding("cores", str(_usable_cores()), problem)


def _blas() -> Finding:
    import torch

    threads, cores = torch.get_num_threads(), _usable_cores()
    problem = None
    if threads > cores:
        problem = f"More threads than cores: export OMP_NUM_THREADS={cores}"
    elif threads == 1 < cores:
        problem = "One thread only: unset OMP_NUM_THREADS, or --set train.threads=N"
    return Finding("BLAS threads", str(threads), problem)


def _memory() -> Finding:
    import psutil

    free = psutil.virtual_memory().available / _GIB
    total = psutil.virtual_memory().total / _GIB
    problem = "Little is free; large graphs will be refused." if free < 2 else None
    return Finding("memory", f"{free:.1f} of {total:.1f} GiB free", problem)


def _disk(workspace: Path) -> Finding:
    place = workspace
    while not place.exists():
        place = place.absolute().parent
    free = shutil.disk_usage(place).free / _GIB
    problem = "Little space: choose another place with --workspace." if free < 2 else None
    return Finding("disk", f"{free:.1f} GiB free", problem)


def _writable(workspace: Path) -> Finding:
    from medapps.tracking.sqlite import check_places

    try:
        workspace.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=workspace) as file:
            file.write(b"medapps")
        check_places(workspace)
    except MedappsError as error:
        return Finding("workspace", str(workspace), str(error), fatal=True)
    except OSError as error:
        reason = f"{error.strerror}: choose another place with --workspace."
        return Finding("workspace", str(workspace), reason, fatal=True)
    return Finding("workspace", str(workspace))


def _allocator() -> Finding:
    from medapps.train.memory import keep_pages

    if keep_pages():
        return Finding("allocator", "keeps large blocks between steps")
    return Finding(
        "allocator", "default", "Not glibc: training pays page faults at each step (about a third)."
    )


def _device() -> Finding:
    import torch

    name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    return Finding("device", name)


def _store(workspace: Path) -> Finding:
    from medapps.tracking import shown_uri, track, tracking_uri

    where, problem = shown_uri(tracking_uri(workspace)), None
    try:
        with track(workspace, experiment="doctor", name="doctor") as run:
            run.metric("ok", 1.0)
        if run.offline:
            problem = "It answers, but takes no numbers. See its own log."
    except MedappsError as error:
        problem = str(error)
    return Finding("MLflow store", where, problem, fatal=problem is not None)
