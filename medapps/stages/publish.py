"""What a task trained as a model of MLflow; what MED's vectors trained is registered as well."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import polars as pl

from medapps.crop.crop import Crop
from medapps.errors import MedappsError
from medapps.serve.register import DIGEST, NAMES, log_labeller, log_recommender
from medapps.stages.find import Vectors
from medapps.stages.runner import Runner, Stage
from medapps.store import read_manifest
from medapps.tracking import Run
from medapps.tracking.versions import versions_of

Publish = Callable[[Run, Path], object]
"""Logs the model in a folder."""


def publish_labels(vectors: Vectors, labelled: pl.Series) -> Publish | None:
    """For labellers of MED's vectors; nobody is served by those of a baseline or a control."""
    source = vectors.source
    if vectors.origin.method != "med" or not isinstance(source, Crop):
        return None
    return lambda run, folder: log_labeller(run, folder, source, labelled, register=True)


def publish_lists(vectors: Vectors) -> Publish | None:
    """For recommenders: all are logged, those of MED's vectors registered."""
    med = vectors.origin.method == "med"
    return lambda run, folder: log_recommender(run, folder, register=med)


def publish_again(runner: Runner, stage: Stage, kind: str, publish: Publish) -> None:
    """Register a model that the registry lacks: its command was killed, or ran untracked."""
    folder = runner.workspace.folder(kind, stage.key)
    if not runner.tracked or stage.tags.get("method") != "med" or not folder.is_dir():
        return
    with suppress(MedappsError):  # a store that no longer answers: the work is done
        digest = read_manifest(folder, kind=kind, verify_below=0).digest
        known = versions_of(runner.workspace.root, NAMES[kind])
        if any(version.tags.get(DIGEST) == digest for version in known):
            return
        runner.say(f"Registering it as {NAMES[kind]}, which was not done before.")
        with runner.run(stage) as run:
            publish(run, folder)
