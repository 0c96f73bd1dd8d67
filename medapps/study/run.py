"""Run a study: every method, size, task and seed on every data set, then the comparison.

Whatever is finished is skipped and interrupted trainings go on. Each data set is an MLflow
experiment; the study is a run in it, opened again when the study is continued, whose description
holds the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from medapps.comparison.gather import Found
from medapps.comparison.table import Comparison
from medapps.comparison.write import save_comparison
from medapps.errors import MedappsError
from medapps.settings import Settings
from medapps.stages import Runner, compare_stage, graph_stage
from medapps.store import Provenance, digest_of, read_manifest, write_text
from medapps.study.measure import Measuring
from medapps.study.plan import data_folder, settings_for
from medapps.tracking import Run, track
from medapps.train.session import Session


@dataclass(frozen=True)
class StudyResult:
    """What a study leaves behind."""

    comparison: Comparison
    folder: Path
    ledger: Mapping[str, bool]
    """Stages, and whether they had to be run."""
    runs: Mapping[str, str | None] = field(default_factory=dict)
    """Per data set: the run of the study."""

    @property
    def carried_out(self) -> int:
        return sum(self.ledger.values())

    @property
    def skipped(self) -> int:
        return len(self.ledger) - self.carried_out


def run_study(
    runner: Runner, settings: Settings, *, data: Path | None = None, session: Session | None = None
) -> StudyResult:
    """Run settings.study; `data` is the folder that holds the data sets."""
    study = settings.study
    if not study.data:
        raise MedappsError(
            "The study names no data set.", fix="Add study.data to its file: a name or a preset."
        )
    folders = [data_folder(runner, item, data) for item in study.data]
    tables: list[tuple[Comparison, Path]] = []
    runs: dict[str, str | None] = {}
    for item, folder in zip(study.data, folders, strict=True):
        own = settings_for(settings, item)
        graph, _ = graph_stage(runner, folder, own)
        counts = f"{len(graph.entities):,} entities, {len(graph.train):,} triples"
        runner.say(f"{graph.name}: {counts}")
        table, where, run_id = _run_on(Measuring(runner, own, item, graph, session or Session()))
        tables.append((table, where))
        runs[graph.name] = run_id
    comparison, folder = _joined(runner, study.name, tables)
    return StudyResult(comparison, folder, runner.ledger, runs)


def _run_on(measuring: Measuring) -> tuple[Comparison, Path, str | None]:
    """The study on one data set, inside its own run."""
    runner, settings, graph = measuring.runner, measuring.settings, measuring.graph
    study, item = settings.study, measuring.item
    place = runner.workspace.root / "studies"
    place.mkdir(parents=True, exist_ok=True)
    note = place / f"{digest_of([settings.plain(), item.plain(), graph.digest])[:16]}.json"
    earlier = json.loads(note.read_text())["run_id"] if note.is_file() else None
    with ExitStack() as stack:

        @cache
        def parent() -> Run:
            run = stack.enter_context(
                track(
                    runner.workspace.root,
                    experiment=graph.name,
                    name=study.name,
                    params={"study": study.plain()},
                    tags={"study": study.name, "task": "study", "data": graph.name},
                    reopen=earlier,
                    enabled=runner.tracked,
                    say=runner.say,
                )
            )
            if run.id:
                write_text(note, json.dumps({"study": study.name, "run_id": run.id}))
            return run

        under = runner.under(parent)
        tracked = replace(measuring, runner=under)
        found = tracked.all()
        tracked.crops()
        tiers = {tier.dim: name for name, tier in settings.crop.tiers.items()}
        table, folder = compare_stage(
            under,
            [Found.load(path) for path in found],
            study=study.name,
            reference=study.reference,
            tiers=tiers,
        )
        opened = parent.cache_info().currsize > 0
        return table, folder, parent().id if opened else earlier


def _joined(
    runner: Runner, name: str, tables: list[tuple[Comparison, Path]]
) -> tuple[Comparison, Path]:
    """The tables of all data sets as one, saved under the study's name."""
    if len(tables) == 1:
        return tables[0]
    whole = Comparison(
        tuple(row for table, _ in tables for row in table.rows),
        tables[0][0].reference,
        tuple(note for table, _ in tables for note in table.notes),
    )
    parents = {path.name: path.name for _, path in tables}
    folder = runner.workspace.folder("comparison", digest_of([name, parents])[:16])
    if runner.workspace.finished("comparison", folder.name) is None:
        manifests = (read_manifest(path, kind="comparison") for _, path in tables)
        reports = [key for manifest in manifests for key in manifest.about["reports"]]
        about = {"study": name, "reports": reports}
        save_comparison(whole, folder, Provenance(parents=parents, ours=True), about)
    return whole, folder
