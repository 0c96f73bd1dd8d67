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

from medapps.store import Provenance, Workspace, stage_key
from medapps.tracking import NO_RUN, Run, track

Noun = TypeVar("Noun")
REVISION = {
    "split": 1,
    "graph": 1,
    "train": 1,
    "grow": 1,
    "crop": 1,
    "baseline": 1,
    "rank": 1,
    "label": 2,
    "recommend": 2,
    "compare": 3,
    "text": 1,
    "text-evaluate": 1,
    "text-export": 1,
}
"""Raised when a verb computes something else than before, so that old results are not reused."""


@dataclass(frozen=True)
class Stage:
    """One step: what it is called, what it depends on, how it appears in MLflow."""

    verb: str
    kind: str
    config: Mapping[str, Any]
    parents: Mapping[str, str]
    experiment: str = ""
    name: str = ""
    tags: Mapping[str, object] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return stage_key(self.verb, REVISION[self.verb], self.config, self.parents)

    def provenance(self, **parents: str | None) -> Provenance:
        """What its noun is saved with; more parents may be named."""
        more = {name: digest for name, digest in parents.items() if digest}
        return Provenance(self.config, more | dict(self.parents), ours=True)


@dataclass(frozen=True)
class Runner:
    """Where stages are kept and tracked, and how they are run."""

    workspace: Workspace
    tracked: bool = True
    force: bool = False
    parent: Callable[[], Run] = lambda: NO_RUN
    """The run that stages belong to; asked for only when a stage has to be run."""
    say: Callable[[str], None] = lambda text: None
    on_run: Callable[[Run], None] = lambda run: None
    ledger: dict[str, bool] = field(default_factory=dict)
    """Every stage that was asked for, and whether it had to be run."""

    def under(self, parent: Callable[[], Run]) -> Runner:
        """The same with its runs as children of a study."""
        return replace(self, parent=parent)

    def silent(self) -> Runner:
        """The same without a word, for all processes of a group but the first."""
        return replace(self, tracked=False, say=lambda text: None, on_run=lambda run: None)

    def folder(self, stage: Stage) -> Path:
        """Where a stage keeps its noun."""
        return self.workspace.folder(stage.kind, stage.key)

    def kept(self, stage: Stage) -> Path | None:
        """The folder of a stage that was run before and need not be again."""
        return None if self.force else self.workspace.finished(stage.kind, stage.key)

    def checkpoints(self, stage: Stage) -> Path:
        """Where the state of an unfinished training is kept."""
        return self.workspace.root / "checkpoints" / stage.key

    @contextmanager
    def run(self, stage: Stage) -> Iterator[Run]:
        """The MLflow run of a stage."""
        with track(
            self.workspace.root,
            experiment=stage.experiment,
            name=stage.name,
            params=stage.config,
            tags=stage.tags,
            parent=self.parent(),
            enabled=self.tracked,
            say=self.say,
        ) as run:
            self.on_run(run)
            yield run


def run_stage(
    runner: Runner, stage: Stage, make: Callable[[Run, Path], Noun], load: Callable[[Path], Noun]
) -> tuple[Noun, Path]:
    """The noun of a stage: loaded, or saved by `make(run, folder)`, which returns it."""
    folder = runner.folder(stage)
    title = f"{stage.experiment}: {stage.name}"
    if runner.kept(stage):
        if title not in runner.ledger:
            runner.say(f"{stage.name}: done before, kept ({folder})")
        runner.ledger.setdefault(title, False)
        return load(folder), folder
    runner.say(stage.name)
    with runner.run(stage) as run:
        began = time.perf_counter()
        noun = make(run, folder)
        run.metric("stage_seconds", time.perf_counter() - began)
        run.artifact(folder / "manifest.json")
    runner.ledger[title] = True
    return noun, folder
