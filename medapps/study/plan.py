"""What a study asks for, once its settings are resolved, and where its data sets are."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from medapps.config import full_key, nested, validate
from medapps.errors import MedappsError
from medapps.methods import CONTROLS, REFERENCES, SIZELESS
from medapps.settings import Settings
from medapps.stages.runner import Runner
from medapps.store import read_manifest
from medapps.study.config import StudyConfig, StudyData, StudyTask


def settings_for(settings: Settings, item: StudyData) -> Settings:
    """The settings with what one data set has to itself."""
    return _changed(settings, item.set, f"study.data, set of {item.name or item.synth}")


def _changed(settings: Settings, changes: dict[str, Any], where: str) -> Settings:
    """The settings with new values for some section.key."""
    if not changes:
        return settings
    values = settings.plain()
    for dotted, value in changes.items():
        values = Settings.merged(values, nested(dotted, value))
    return validate(Settings, values, where=where)


def tasks_of(study: StudyConfig, item: StudyData) -> tuple[StudyTask, ...]:
    """The tasks on a data set."""
    return item.tasks or study.tasks


def methods_of(study: StudyConfig, task: StudyTask) -> tuple[str, ...]:
    """The methods of a task: controls have no triples to rank, references only recommend."""
    methods = task.methods or study.methods
    if task.task == "rank":
        return tuple(m for m in methods if m not in CONTROLS + REFERENCES)
    if task.task == "label":
        return tuple(m for m in methods if m not in (*REFERENCES, "none"))
    return methods


def dims_of(settings: Settings, task: StudyTask, method: str) -> tuple[int, ...]:
    """The sizes of a method in a task, largest first; students stay below their teacher."""
    study = settings.study
    if method in SIZELESS:
        return (0,)
    dims = task.dims or study.dims or settings.train.dims
    if method not in CONTROLS and method not in ("med", "dt"):
        teacher = settings.baseline.teacher_dim or settings.train.dims[-1]
        dims = tuple(dim for dim in dims if dim < teacher)
    return tuple(sorted(dims, reverse=True))


def quick(settings: Settings, given: Collection[str] = ()) -> Settings:
    """The same study with one seed and the small budget of study.quick, or else a tiny one.

    What a user has `given` (section.key) stays as it is.
    """
    study, ncf = settings.study, settings.recommend.ncf
    tiny: dict[str, Any] = {
        "train.epochs": min(settings.train.epochs, 3),
        "label.epochs": min(settings.label.epochs, 10),
        "recommend.ncf.epochs": min(ncf.epochs, 3),
        "baseline.search.when": "off",
        "study.limit": min(study.limit or 1000, 1000),
    }
    once = {"study.seeds": study.seeds[:1], "study.repeats": 1}
    changes = {full_key(Settings, key): v for key, v in (tiny | once | study.quick).items()}
    data = [
        item.model_copy(
            update={
                "set": {k: v for k, v in item.set.items() if full_key(Settings, k) not in changes}
            }
        )
        for item in study.data
    ]
    kept = {full_key(Settings, key) for key in given}
    changes = {key: value for key, value in changes.items() if key not in kept}
    fixed = {"study.name": f"{study.name}-quick", "study.data": [item.plain() for item in data]}
    return _changed(settings, changes | fixed, "study.quick")


def shifted(settings: Settings, seed: int) -> Settings:
    """The same study with every seed moved by `seed`: its repetition."""
    moved = tuple(one + seed for one in settings.study.seeds)
    study = settings.study.model_copy(update={"seeds": moved})
    return settings.model_copy(update={"study": study})


def data_folder(runner: Runner, item: StudyData, root: Path | None) -> Path:
    """The folder of a data set; a synthetic one is made in the workspace if it is not there."""
    if item.synth is not None:
        return _synthetic(runner, item)
    assert item.name is not None
    roots = [Path(given) for given in (root, os.environ.get("MEDAPPS_DATA")) if given]
    for place in (*(root / item.name for root in roots), Path(item.name)):
        if place.exists():
            return place
    where = " nor in ".join(str(root) for root in roots) or "the working folder"
    raise MedappsError(
        f"There is no data set {item.name!r} in {where}.",
        fix="Say where the data sets are: --data DIR, or MEDAPPS_DATA.",
    )


def _synthetic(runner: Runner, item: StudyData) -> Path:
    from medapps.graph.synth import synthesize

    assert item.synth is not None
    parts = ["synth", item.synth, str(item.users or ""), f"s{item.seed}" if item.seed else ""]
    folder = runner.workspace.root / "data" / "-".join(filter(None, parts))
    if folder.exists():
        read_manifest(folder, kind="dataset")
        return folder
    runner.say(f"making the synthetic data set {folder.name}")
    synthesize(folder, item.synth, item.users, item.seed)
    return folder
