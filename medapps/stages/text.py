"""The verbs on text as stages: trained once, tracked, recognised when they are done."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medapps.errors import MedappsError
from medapps.report import Report
from medapps.serve.onnx import write_onnx
from medapps.serve.register import log_text
from medapps.stages.runner import Runner, Stage, run_stage
from medapps.stages.train import ready_checkpoints
from medapps.store import Provenance, Workspace, writing
from medapps.text.config import EACH, METHODS, ONCE, TextConfig
from medapps.text.data import TextTask, encode
from medapps.text.elastic import narrowed, submodel
from medapps.text.evaluate import report_of
from medapps.text.model import KIND, Base, TextModel, write_pretrained
from medapps.text.train import Progress, teach, train
from medapps.tracking import Run

FILES = {"safetensors": "model.safetensors", "onnx": "model.int8.onnx"}


@dataclass(frozen=True)
class Training:
    """Trainings on one task: what they start from, and who follows them."""

    runner: Runner
    task: TextTask
    base: Base
    config: TextConfig
    seed: int = 0
    resume: bool = False
    progress: Progress | None = None
    stop: Callable[[], int] | None = None

    def folders(self, method: str) -> dict[int, Path]:
        """Train what a method needs; the folder that holds each width."""
        widths = self.config.widths
        if method not in METHODS:
            raise MedappsError(
                f"There is no method {method!r} on text.", fix=f"Take one of {', '.join(METHODS)}."
            )
        if method in ONCE:
            return dict.fromkeys(widths, self._train(method, widths))
        if method == "dt":
            return {width: self._train("dt", (width,)) for width in reversed(widths)}
        teacher = self._train("dt", widths[-1:])  # also what ext cuts
        if method == "ext":
            return dict.fromkeys(widths, teacher)
        return {width: self._train(method, (width,), teacher) for width in reversed(widths[:-1])}

    def _train(self, method: str, widths: tuple[int, ...], teacher: Path | None = None) -> Path:
        """One training as a stage."""
        task, config, seed = self.task, self.config, self.seed
        words = ",".join(map(str, widths))
        parents = {"base": self.base.digest, "train": task.digests["train"]}
        above = TextModel.load(teacher) if teacher is not None else None
        if above is not None and above.manifest is not None:
            parents["teacher"] = above.manifest.digest
        stage = Stage(
            "text",
            KIND,
            config.recipe(method, widths) | {"seed": seed},
            parents,
            f"{task.data}-{task.name}",
            f"{method}/{words}/text/{seed}",
            {"method": method, "dim": words, "task": "text-train", "data": task.data, "seed": seed},
        )
        kept = self.runner.kept(stage) is not None  # what is finished needs no state
        full = self.base.config()
        for width in widths:
            narrowed(full, width)  # a wrong one is refused before a run is opened
        if method not in EACH and widths[-1] != full.hidden_size:
            raise MedappsError(
                f"The largest width must be the model's, {full.hidden_size}.",
                fix=f"--widths {words},{full.hidden_size}",
            )
        checkpoint = ready_checkpoints(self.runner, stage, self.resume or kept)

        def make(run: Run, folder: Path) -> Path:
            run.dataset(task.train.head(100), task.name, task.digests["train"], task.data)
            net, tokenizer = self.base.start(task, seed, config.order)
            if method in EACH and widths[-1] != net.config.hidden_size:
                net = submodel(net, widths[-1])
            data = encode(tokenizer, task.train, task.labels(task.train), config.max_length)
            lessons = None if above is None else teach(above.net, data, patient=method == "pkd")
            seconds = train(
                net, widths, method, data, config, seed=seed, lessons=lessons, run=run,
                checkpoint=checkpoint, resume=self.resume, progress=self.progress, stop=self.stop,
            )  # fmt: skip
            run.metric("train_seconds", seconds)
            about: dict[str, Any] = {
                "task": task.name,
                "data": task.data,
                "method": method,
                "widths": list(widths),
                "seed": seed,
                "classes": list(task.classes),
                "texts": list(task.texts),
                "max_length": config.max_length,
                "train_seconds": seconds + (above.about["train_seconds"] if above else 0.0),
            }
            TextModel(net, tokenizer, about).save(folder, stage.provenance(run=run.id))
            shutil.rmtree(checkpoint, ignore_errors=True)
            return folder

        return run_stage(self.runner, stage, make, lambda folder: folder)[1]


def evaluate_stage(
    runner: Runner, task: TextTask, folder: Path, width: int, method: str
) -> tuple[Report, Path]:
    """Measure one width of a trained model on the dev sentences."""
    model = TextModel.load(folder)
    check_width(model, width, method)
    assert model.manifest is not None
    seed = model.about["seed"]
    stage = Stage(
        "text-evaluate",
        "report",
        dict(model.manifest.config) | {"width": width, "method": method},
        {"model": model.manifest.digest, "dev": task.digests["dev"]},
        f"{task.data}-{task.name}",
        f"{method}/{width}/text-{task.name}/{seed}",
        {"method": method, "dim": width, "task": f"text-{task.name}", "data": task.data}
        | {"seed": seed},
    )

    def make(run: Run, to: Path) -> Report:
        report = report_of(model, task, width, method)
        with run.results_first(task.metrics):
            run.metrics(report.metrics | report.cost)
        return report.save(to, stage.provenance())

    return run_stage(runner, stage, make, Report.load)


def export_stage(
    runner: Runner, folder: Path, width: int, method: str, form: str, out: Path | None
) -> tuple[dict[str, Any], Path]:
    """Write one width for a device: a folder of transformers, which is also a model in MLflow, or
    an ONNX file with int8 weights.
    """
    if form not in FILES:
        raise MedappsError(f"There is no format {form!r}.", fix=f"Take one of {', '.join(FILES)}.")
    model = TextModel.load(folder)
    check_width(model, width, method)
    assert model.manifest is not None
    about = dict(model.about) | {"width": width, "format": form}
    stage = Stage(
        "text-export",
        "textexport",
        {"width": width, "format": form, "method": method},
        {"model": model.manifest.digest},
        f"{about['data']}-{about['task']}",
        f"{method}/{width}/export-{form}/{about['seed']}",
        {"method": method, "dim": width, "task": "text-export", "data": about["data"]},
    )
    to = out or runner.folder(stage)
    given = Provenance(stage.config, stage.parents, force=runner.force)
    given = stage.provenance() if out is None else given
    alone = submodel(model.net, width).eval()
    with runner.run(stage) as run:
        with writing(to, kind=stage.kind, provenance=given) as draft:
            write_pretrained(alone, model.tokenizer, draft.folder)
            if form == "onnx":
                draft.path(FILES["safetensors"]).unlink()
                write_onnx(alone, draft.path(FILES["onnx"]))
            draft.about = about
        size = (to / FILES[form]).stat().st_size
        run.metrics({"bytes": size, "parameters": alone.num_parameters()})
        if form == "safetensors" and run.id is not None:
            name = f"text-{about['task']}"
            log_text(run, to, about["texts"], model=name, alias=f"{method}-{width}")
    made = {"width": width, "file": FILES[form], "bytes": size}
    return made | {"parameters": alone.num_parameters()}, to


def check_width(model: TextModel, width: int, method: str) -> None:
    """Refuse a width that was not trained; ext cuts at any."""
    if method == "ext":
        narrowed(model.net.config, width)
    elif width not in model.widths:
        known = ", ".join(map(str, model.widths))
        raise MedappsError(
            f"Width {width} was not trained; this model has {known}.",
            fix=f"Take one of them, or train again with --widths {width},...",
        )


def find_models(workspace: Workspace, task: str, method: str, seed: int) -> dict[int, Path]:
    """The newest model that holds each trained width; for ext the one that it cuts."""
    found: dict[int, tuple[str, Path]] = {}
    wanted = (task, "dt" if method == "ext" else method, seed)
    for folder, manifest in workspace.manifests(KIND):
        about = manifest.about
        if (about["task"], about["method"], about["seed"]) == wanted:
            for width in about["widths"]:
                entry = (manifest.created, folder)
                found[width] = max(found.get(width, entry), entry)
    if not found:
        raise MedappsError(
            f"There is no {method} model of the task {task!r} with seed {seed}.",
            fix=f"Train one: medapps text train --task {task} --method {method}.",
        )
    if method == "ext":
        return {max(found): found[max(found)][1]}
    return {width: path for width, (_, path) in sorted(found.items())}
