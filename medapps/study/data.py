"""Where the data sets of a study are."""

from __future__ import annotations

import os
from pathlib import Path

from medapps.errors import MedappsError
from medapps.stages.runner import Runner
from medapps.store import read_manifest
from medapps.study.config import StudyData


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
    from medapps.graph.synth.synthesize import synthesize

    assert item.synth is not None
    parts = ["synth", item.synth, str(item.users or ""), f"s{item.seed}" if item.seed else ""]
    folder = runner.workspace.root / "data" / "-".join(filter(None, parts))
    if folder.exists():
        read_manifest(folder, kind="dataset")
        return folder
    runner.say(f"making the synthetic data set {folder.name}")
    synthesize(folder, item.synth, item.users, item.seed)
    return folder
