"""Reports to one table: method x tier x task, with intervals, verdicts and costs.

A verdict says what the paired comparison with the reference method shows at that size: "better",
"worse" or "no difference shown". It needs both the bootstrap of the difference and, where the
metric is a mean over units, Wilcoxon's signed-rank test, after Holm's correction over the methods.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import polars as pl

from medapps.comparison.gather import Group, Place, gather
from medapps.comparison.notes import unequal
from medapps.errors import MedappsError
from medapps.evaluate.metrics import LOWER_IS_BETTER
from medapps.evaluate.statistics import (
    Measured,
    draw_values,
    holm,
    interval,
    two_sided,
    wilcoxon,
)
from medapps.methods import CONTROLS, TIERS
from medapps.report import Report

Verdict = Literal["better", "worse", "no difference shown"]
TIER_OF = {dim: name for name, dim in TIERS.items()}


@dataclass(frozen=True)
class Row:
    """One number of the table and what is known about it."""

    method: str
    tier: str
    dim: int
    task: str
    metric: str
    value: float
    low: float | None
    high: float | None
    seeds: int
    """Runs behind the value: trainings times repetitions of the task."""
    train_seconds: float | None
    bytes: float | None
    data: str
    target: str
    units: int
    """Users or queries that were measured; 0 where only the totals are known."""
    kept: float | None = None
    """Share of the same method's value at its largest size."""
    difference: float | None = None
    """Value minus the reference's, on the same units."""
    difference_low: float | None = None
    difference_high: float | None = None
    p_value: float | None = None
    """Holm-corrected over the methods that are compared with the reference here."""
    verdict: Verdict | None = None
    best: bool = False
    """Best value of its data set, task, dim and metric; controls do not compete."""

    @property
    def place(self) -> Place:
        return Place(self.data, self.task, self.target)


@dataclass(frozen=True)
class Comparison:
    """The whole table."""

    rows: tuple[Row, ...]
    reference: str
    notes: tuple[str, ...] = ()
    """Where budgets, graphs or splits of what is compared differ."""

    def frame(self) -> pl.DataFrame:
        """One line per row."""
        schema = {f.name: _TYPES[str(f.type).split(" |")[0]] for f in fields(Row)}
        return pl.DataFrame([asdict(row) for row in self.rows], schema=schema)

    def plain(self) -> list[dict[str, Any]]:
        """JSON-able rows; what is no number is null."""
        return [{k: _finite(v) for k, v in asdict(row).items()} for row in self.rows]

    def places(self) -> list[Place]:
        return sorted({row.place for row in self.rows})


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


_TYPES: dict[str, Any] = {
    "str": pl.String,
    "Verdict": pl.String,
    "int": pl.Int64,
    "float": pl.Float64,
    "bool": pl.Boolean,
}


def compare(
    reports: Iterable[Report],
    *,
    reference: str = "med",
    tiers: Mapping[int, str] = TIER_OF,
    draws: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compare all metrics of all methods, at each size, with the reference method."""
    groups = gather(reports)
    if not groups:
        raise MedappsError(
            "There is nothing to compare: no task has been run.",
            fix="Run one first: medapps label, recommend or rank, or medapps run FILE.",
        )
    entries = _entries(groups, draws, seed)
    rows: list[Row] = []
    for place, dim in _columns(groups):
        here = [e for e in entries if e.group.place == place and e.group.dim in (dim, 0)]
        for metric in dict.fromkeys(entry.metric for entry in here):
            column = [entry for entry in here if entry.metric == metric]
            rows += _column(column, dim, tiers.get(dim, str(dim)), reference, level)
    return Comparison(tuple(_with_kept(rows)), reference, unequal(groups, reference))


def _with_kept(rows: list[Row]) -> Iterator[Row]:
    """Rows with what each method keeps of its largest size; these come first."""
    largest: dict[tuple[Place, str, str], float] = {}
    for row in rows:
        whole = largest.setdefault((row.place, row.method, row.metric), row.value)
        yield replace(row, kept=row.value / whole if whole else None)


def _columns(groups: list[Group]) -> list[tuple[Place, int]]:
    """Tasks with their sizes, largest first; methods without a size (dim 0) stand beside each."""
    found = {(group.place, group.dim) for group in groups}
    sized = {place for place, dim in found if dim}
    kept = [(place, dim) for place, dim in found if dim or place not in sized]
    return sorted(kept, key=lambda item: (item[0], -item[1]))


@dataclass
class Entry:
    """One metric of one group, and its values on resampled units where it has units."""

    group: Group
    metric: str
    measured: Measured | None
    draws: np.ndarray | None = None

    @property
    def value(self) -> float:
        return float(np.mean([np.mean(r.by_seed[self.metric]) for r in self.group.reports]))


def _entries(groups: list[Group], draws: int, seed: int) -> list[Entry]:
    """Every metric of every group; all that share their units are drawn together."""
    entries = [
        Entry(group, metric, group.measured(metric))
        for group in groups
        for metric in group.reports[0].by_seed
        if all(metric in report.by_seed for report in group.reports)
    ]
    together: dict[str, list[tuple[Entry, Measured]]] = {}
    for entry in entries:
        if (one := entry.measured) is not None:
            same = f"{entry.group.unit_digest or entry.group.key} {one.units}"
            together.setdefault(same, []).append((entry, one))
    for members in together.values():
        values = draw_values([one for _, one in members], draws=draws, seed=seed)
        for (entry, _), drawn in zip(members, values, strict=True):
            entry.draws = drawn
    return entries


def _column(entries: list[Entry], dim: int, tier: str, reference: str, level: float) -> list[Row]:
    """The rows of one metric of one task at one size, the best one first and marked."""
    metric = entries[0].metric
    sign = -1 if metric in LOWER_IS_BETTER else 1
    out = CONTROLS if any(e.group.method not in CONTROLS for e in entries) else ()
    best = max(sign * entry.value for entry in entries if entry.group.method not in out)
    paired = _against(entries, reference, level, sign)
    rows = []
    for i, entry in enumerate(entries):
        group, drawn = entry.group, entry.draws
        low, high = interval(drawn, level) if drawn is not None else (None, None)
        rows.append(
            Row(
                method=group.method,
                tier=tier,
                dim=dim,
                task=group.place.task,
                metric=metric,
                value=entry.value,
                low=low,
                high=high,
                seeds=sum(len(report.by_seed[metric]) for report in group.reports),
                train_seconds=group.cost("train_seconds"),
                bytes=group.cost("bytes"),
                data=group.place.data,
                target=group.place.target,
                units=entry.measured.units if entry.measured else 0,
                best=group.method not in out and sign * entry.value == best,
                **paired.get(i, {}),
            )
        )
    return sorted(rows, key=lambda row: -sign * row.value)


def _against(
    entries: list[Entry], reference: str, level: float, sign: int
) -> dict[int, dict[str, Any]]:
    """Per entry that shares its units with the reference: difference, interval, p and verdict."""
    base = next((entry for entry in entries if entry.group.method == reference), None)
    if base is None:
        return {}
    found = {
        i: difference
        for i, entry in enumerate(entries)
        if entry is not base and (difference := _difference(entry, base, level)) is not None
    }
    corrected = holm([difference["p_value"] for difference in found.values()])
    for difference, p in zip(found.values(), corrected, strict=True):
        shown = p < 1 - level
        better = sign * difference["difference"] > 0
        difference["p_value"] = p
        difference["verdict"] = (
            "no difference shown" if not shown else "better" if better else "worse"
        )
    return found


def _difference(entry: Entry, base: Entry, level: float) -> dict[str, Any] | None:
    """Paired difference of two entries; None where they were not measured on the same units."""
    one, other, digest = entry.measured, base.measured, entry.group.unit_digest
    if not digest or digest != base.group.unit_digest or one is None or other is None:
        return None
    assert entry.draws is not None and base.draws is not None
    draws = entry.draws - base.draws
    low, high = interval(draws, level)
    p = two_sided(draws)
    if one.per_unit is not None and other.per_unit is not None:  # else only the bootstrap decides
        p = max(p, wilcoxon(one.per_unit, other.per_unit))
    difference = one.value - other.value
    names = ("difference", "difference_low", "difference_high", "p_value")
    return dict(zip(names, (difference, low, high, p), strict=True))
