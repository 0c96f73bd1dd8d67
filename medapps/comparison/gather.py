"""Which reports belong together: one group per method, size and task, with all its trainings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from medapps.errors import MedappsError
from medapps.evaluate.metrics import FROM_CLASSES
from medapps.evaluate.statistics import Measured
from medapps.report import Report
from medapps.store import Workspace, read_manifest, usable


@dataclass(frozen=True, order=True)
class Place:
    """What is compared: one task on one data set."""

    data: str
    task: str
    target: str
    """The label column; empty for the other tasks."""


@dataclass(frozen=True)
class Group:
    """Reports of one method and dim on the same units; each comes from a training of its own."""

    place: Place
    method: str
    dim: int
    reports: tuple[Report, ...]

    @property
    def key(self) -> tuple[Place, str, int]:
        return self.place, self.method, self.dim

    @property
    def unit_digest(self) -> str:
        return self.reports[0].unit_digest

    def measured(self, metric: str) -> Measured | None:
        """A metric on every unit, in every run; None where the reports hold totals only."""
        units = [report.units for report in self.reports]
        parts: tuple[str, ...] = (metric,)
        if not all(metric in one for one in units):
            parts = ("target", "score") if metric == "pearson" else ("truth", "guess")
            known = metric == "pearson" or metric in FROM_CLASSES
            if not known or not all({*parts} <= set(one) for one in units):
                return None
        runs = [list(zip(*(one[part] for part in parts), strict=True)) for one in units]
        name, values = f"{self.method}/{self.dim}", [value for run in runs for value in run]
        trainings = [training for training, run in enumerate(runs) for _ in run]
        if len(parts) == 1:
            return Measured.mean([value for (value,) in values], name, trainings)
        if metric == "pearson":
            return Measured.correlation(values, name, trainings)
        return Measured.from_classes(values, metric, name, trainings)

    def cost(self, name: str) -> float | None:
        """Mean over the trainings."""
        values = [report.cost[name] for report in self.reports if name in report.cost]
        return sum(values) / len(values) if values else None


def place_of(report: Report) -> Place:
    """Where a report stands in the comparison."""
    target = report.details.get("label", "") if report.task == "label" else ""
    return Place(report.data, report.task, str(target))


def gather(reports: Iterable[Report]) -> list[Group]:
    """Group reports, given oldest first; where recipes or units differ, the newest ones count.

    `details["recipe"]` names the settings without seeds and `details["training"]` the seed of the
    training; a later report of the same training replaces the earlier one.
    """
    found: dict[tuple[Place, str, int], dict[object, Report]] = {}
    for report in reports:
        members = found.setdefault((place_of(report), report.method, report.dim), {})
        for training, member in list(members.items()):
            if _setting(member) != _setting(report):
                del members[training]
        training = report.details.get("training", report.seeds)
        members[str(training)] = report
    return [
        Group(place, method, dim, tuple(members.values()))
        for (place, method, dim), members in found.items()
    ]


def _setting(report: Report) -> tuple[object, str]:
    return report.details.get("recipe"), report.unit_digest


@dataclass(frozen=True)
class Found:
    """A saved report."""

    report: Report
    folder: Path
    digest: str
    created: str

    @classmethod
    def load(cls, folder: Path) -> Found:
        manifest = read_manifest(folder, kind="report")
        return cls(Report.load(folder), folder, manifest.digest, manifest.created)


def saved_reports(
    workspace: Workspace,
    folders: Sequence[Path] = (),
    *,
    study: str | None = None,
    data: str | None = None,
    task: str | None = None,
) -> list[Found]:
    """The reports in `folders`, of a study, or of the whole workspace, oldest first."""
    if study is not None:
        folders = [workspace.folder("report", key) for key in _study_reports(workspace, study)]
    paths = list(folders) or workspace.saved("report")
    found = sorted((Found.load(path) for path in paths), key=lambda one: one.created)
    chosen = [
        one for one in found if data in (None, one.report.data) and task in (None, one.report.task)
    ]
    if found and not chosen:
        have = sorted({f"{one.report.data}/{one.report.task}" for one in found})
        raise MedappsError(
            f"No report fits; there are reports of {', '.join(have)}.",
            fix="Change --data or --task.",
        )
    return chosen


def _study_reports(workspace: Workspace, study: str) -> list[str]:
    folder = workspace.newest("comparison", study=study)
    if folder is None:
        raise MedappsError(
            f"The workspace {workspace.root} has no finished study {study!r}.",
            fix="Run it first: medapps run FILE.",
        )
    return _compared(folder)


@usable("comparison")
def _compared(folder: Path) -> list[str]:
    return [str(key) for key in read_manifest(folder, kind="comparison").about["reports"]]
