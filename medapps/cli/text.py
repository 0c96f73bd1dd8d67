"""`medapps text`: a language model whose narrower widths are models of their own."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from medapps.cli.common import Job, Result, Setting, command, command_group
from medapps.cli.options import Resume
from medapps.errors import MedappsError

if TYPE_CHECKING:
    from medapps.text.config import TextConfig
    from medapps.text.train import Progress

text = command_group("text", "Fine-tune a language model once for every width.")
Task = Annotated[str, typer.Option("--task", help="sst2, mrpc, rte, stsb, cola or your own.")]
Data = Annotated[
    Path | None, typer.Option(help="The folder of tasks; else glue under MEDAPPS_DATA.")
]
Method = Annotated[str, typer.Option(help="med, hat, dt, bkd, pkd or ext.")]


@command(
    "train",
    example="medapps text train --task sst2 --widths 384,192,96,48",
    group=text,
    settings={
        "--widths": Setting("text.widths", "Widths, e.g. 384,192,96,48.", list),
        "--epochs": Setting("text.epochs", "Epochs.", int),
        "--steps": Setting("text.steps", "Updates, instead of epochs.", int),
    },
)
def train(
    job: Job,
    task: Task,
    method: Method = "med",
    data: Data = None,
    weights: Annotated[
        Path | None, typer.Option(help="A folder with a BERT of transformers; else the package's.")
    ] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Begin without pre-trained weights.")
    ] = False,
    resume: Resume = False,
) -> Result:
    """Fine-tune on a task; by med and hat one training holds every width."""
    config = _config(job)
    from medapps.cli.tables import facts
    from medapps.stages.text import Training
    from medapps.text.data import read_task
    from medapps.text.model import find_base

    base = find_base(weights, scratch=from_scratch)
    read = read_task(_tasks(data), task)
    job.say(f"{task}: {len(read.train):,} sentences to learn from, {len(read.dev):,} to test")
    with job.stopping() as stop, _bar(job) as bar:
        training = Training(job.runner, read, base, config, job.seed, resume, bar, stop)
        folders = training.folders(method)
    values = {
        "artifact": folders[max(folders)],
        "task": task,
        "method": method,
        "widths": sorted(folders),
        "folders": {str(width): folder for width, folder in folders.items()},
    }
    return Result(values, [facts(values), "Next: medapps text evaluate, or text export."])


@command("evaluate", example="medapps text evaluate --task sst2", group=text)
def evaluate(
    job: Job,
    task: Task,
    method: Method = "med",
    width: Annotated[int | None, typer.Option(help="One width; else all trained ones.")] = None,
    data: Data = None,
) -> Result:
    """Test every width on the dev sentences; `medapps compare` sets methods side by side."""
    config = _config(job)
    import polars as pl

    from medapps.cli.tables import rows
    from medapps.stages.text import evaluate_stage, find_models
    from medapps.text.data import read_task

    read = read_task(_tasks(data), task)
    found = find_models(job.workspace, task, method, job.seed)
    lines: list[dict[str, Any]] = []
    sizes = config.widths if method == "ext" else tuple(found)  # any width can be cut
    for size in [width] if width else sorted(sizes, reverse=True):
        folder = found.get(size, next(iter(found.values())))
        report, saved = evaluate_stage(job.runner, read, folder, size, method)
        lines.append({"width": size, **report.metrics, **report.cost, "report": str(saved)})
    values = {"artifact": lines[0]["report"], "task": task, "method": method, "widths": lines}
    values["constant"] = report.details["constant"]
    note = f"A constant guess has {read.metrics[0]} {values['constant']:.4g}."
    return Result(values, [rows(pl.DataFrame(lines).drop("report")), note])


@command("export", example="medapps text export --task sst2 --width 96 --format onnx", group=text)
def export(
    job: Job,
    task: Task,
    width: Annotated[int, typer.Option("--width", help="Which sub-model.")],
    method: Method = "med",
    form: Annotated[
        str, typer.Option("--format", help="safetensors for transformers, or onnx with int8.")
    ] = "safetensors",
    out: Annotated[Path | None, typer.Option(help="Where to; else in the workspace.")] = None,
) -> Result:
    """Write one width as an ordinary model, without the rest."""
    _config(job)
    from medapps.cli.tables import facts
    from medapps.stages.text import export_stage, find_models

    found = find_models(job.workspace, task, method, job.seed)
    folder = found.get(width, next(iter(found.values())))
    made, to = export_stage(job.runner, folder, width, method, form, out)
    values = {"artifact": to, "task": task, "method": method, **made}
    return Result(values, [facts(values)])


def _tasks(given: Path | None) -> Path:
    """The folder of tasks: the given one, or GLUE under MEDAPPS_DATA."""
    root = os.environ.get("MEDAPPS_DATA")
    if given is None and root is None:
        raise MedappsError("Where are the tasks?", fix="Give --data FOLDER, or set MEDAPPS_DATA.")
    return given or Path(str(root)) / "glue"


def _config(job: Job) -> TextConfig:
    """The section `text` of the configuration, which is the only one that these commands read."""
    if importlib.util.find_spec("transformers") is None:
        raise MedappsError("Text needs transformers.", fix="pip install 'medapps[text]'")
    from medapps.text.config import TextSettings

    return job.resolved(TextSettings).text


@contextmanager
def _bar(job: Job) -> Iterator[Progress]:
    """Updates, loss, sentences per second and the time left."""
    from rich.progress import TimeRemainingColumn

    from medapps.cli.tables import progress_bar

    with progress_bar(job, TimeRemainingColumn()) as show:

        def told(step: int, steps: int, loss: float, speed: float) -> None:
            note = f"loss {loss:.4f}  {speed:,.0f} sentences/s"
            show(step, steps, f"update {step} of {steps}", note)

        yield told
