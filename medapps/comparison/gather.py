"""Which reports belong together: one group per method, size and task, with all its trainings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from medapps.report import Report
from medapps.store import MANIFEST, Workspace


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


def saved_reports(workspace: Workspace, folders: Sequence[Path] = ()) -> list[Report]:
    """The reports in `folders`, or all of the workspace, oldest first."""
    paths = list(folders) or [p.parent for p in (workspace.root / "reports").glob(f"*/{MANIFEST}")]
    created = {path: json.loads((path / MANIFEST).read_text())["created"] for path in paths}
    return [Report.load(path) for path in sorted(paths, key=lambda path: created[path])]
