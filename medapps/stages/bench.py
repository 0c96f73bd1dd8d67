"""Stages: each verb once, tracked, and recognised when it is already done.

A stage is named by its verb, revision, resolved config and the digests of its inputs. If the
workspace holds that folder it is loaded; otherwise the verb runs inside its own MLflow run and the
noun is saved. Commands and studies call the same functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from medapps.store import Workspace, stage_key
from medapps.tracking import NO_RUN, Run, track

Noun = TypeVar("Noun")
REVISION = {
    "graph": 1,
    "train": 1,
    "crop": 1,
    "baseline": 1,
    "rank": 1,
    "label": 2,
    "recommend": 2,
    "compare": 2,
}
"""Raised when a verb computes something else than before, so that old results are not reused."""


@dataclass(frozen=True)
class Bench:
    """Where stages are kept and tracked, and how they are carried out."""

    workspace: Workspace
    tracked: bool = True
    force: bool = False
    parent: Callable[[], Run] = lambda: NO_RUN
    """The run that stages belong to; asked for only when a stage has to be carried out."""
    say: Callable[[str], None] = lambda text: None
    on_run: Callable[[Run], None] = lambda run: None
    ledger: dict[str, bool] = field(default_factory=dict)
    """Every stage that was asked for, and whether it had to be carried out."""

    def under(self, parent: Callable[[], Run]) -> Bench:
        """The same bench with its runs as children of a study."""
        return replace(self, parent=parent)


@dataclass(frozen=True)
class Stage:
    """One step: what it is called, what it depends on, how it appears in MLflow."""

    verb: str
    kind: str
    config: Mapping[str, Any]
    parents: Mapping[str, str]
    experiment: str
    name: str
    tags: Mapping[str, object] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return stage_key(self.verb, REVISION[self.verb], self.config, self.parents)


@contextmanager
def stage_run(bench: Bench, stage: Stage) -> Iterator[Run]:
    """The MLflow run of a stage."""
    with track(
        bench.workspace.root,
        experiment=stage.experiment,
        name=stage.name,
        params=stage.config,
        tags=stage.tags,
        parent=bench.parent(),
        enabled=bench.tracked,
        say=bench.say,
    ) as run:
        bench.on_run(run)
        yield run


def carry_out(
    bench: Bench,
    stage: Stage,
    make: Callable[[Run, Path], None],
    load: Callable[[Path], Noun],
) -> tuple[Noun, Path]:
    """Load the stage's noun, or let `make(run, folder)` write it first."""
    folder = bench.workspace.folder(stage.kind, stage.key)
    title = f"{stage.experiment}: {stage.name}"
    if not bench.force and bench.workspace.finished(stage.kind, stage.key):
        if title not in bench.ledger:
            bench.say(f"{stage.name}: done before, kept ({folder})")
        bench.ledger.setdefault(title, False)
        return load(folder), folder
    bench.say(stage.name)
    with stage_run(bench, stage) as run:
        began = time.perf_counter()
        make(run, folder)
        run.metric("stage_seconds", time.perf_counter() - began)
        run.artifact(folder / "manifest.json")
    bench.ledger[title] = True
    return load(folder), folder
