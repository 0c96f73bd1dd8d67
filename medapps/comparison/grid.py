"""The table as people read it: one grid per task, a line per tier and method."""

from __future__ import annotations

from dataclasses import dataclass

from medapps.comparison.gather import Place
from medapps.comparison.table import Comparison, Row
from medapps.config import show_bytes

HEADLINES = {
    "label": ("f1_macro", "accuracy"),
    "recommend": (
        "full.ndcg_at_10",
        "cold.ndcg_at_10",
        "few10.ndcg_at_10",
        "full.hit_at_10",
        "sampled.ndcg_at_10",
    ),
    "rank": ("mrr", "hits_at_1", "hits_at_10"),
}
"""Metrics that are shown for each task, the most important first; the files hold all."""

ONE_RUN = "Values of one run say nothing about other seeds: give the study more of them."


@dataclass(frozen=True)
class Line:
    """A method at a size: its shown metrics, by name."""

    method: str
    tier: str
    dim: int
    rows: dict[str, Row]

    @property
    def first(self) -> Row:
        return next(iter(self.rows.values()))


@dataclass(frozen=True)
class Grid:
    """One task on one data set."""

    place: Place
    metrics: tuple[str, ...]
    lines: tuple[Line, ...]

    @property
    def title(self) -> str:
        target = f" ({self.place.target})" if self.place.target else ""
        return f"{self.place.data}: {self.place.task}{target}"


def grids(comparison: Comparison) -> list[Grid]:
    """All grids; sizes descending, in each size the best method first."""
    return [_grid(comparison, place) for place in comparison.places()]


def _grid(comparison: Comparison, place: Place) -> Grid:
    rows = [row for row in comparison.rows if row.place == place]
    known = list(dict.fromkeys(row.metric for row in rows))
    wanted = [metric for metric in HEADLINES.get(place.task, ()) if metric in known]
    metrics = tuple(wanted or known[:3])
    lines: dict[tuple[int, str], dict[str, Row]] = {}
    for metric in metrics:
        for row in (row for row in rows if row.metric == metric):
            lines.setdefault((-row.dim, row.method), {})[metric] = row
    ordered = sorted(lines.items(), key=lambda item: item[0][0])
    return Grid(
        place,
        metrics,
        tuple(
            Line(method, next(iter(cells.values())).tier, -dim, cells)
            for (dim, method), cells in ordered
        ),
    )


def metric_title(name: str) -> str:
    """full.ndcg_at_10 as ndcg@10, sampled.ndcg_at_10 as sampled ndcg@10."""
    return name.removeprefix("full.").replace("_at_", "@").replace("_", " ").replace(".", " ")


def number(row: Row | None) -> str:
    """0.412 [0.401, 0.423]."""
    if row is None:
        return "–"
    if row.low is None or row.high is None:
        return f"{row.value:.3f}"
    return f"{row.value:.3f} [{row.low:.3f}, {row.high:.3f}]"


def arrow(row: Row | None) -> str:
    """How a value beside the first one differs from the reference's, where that is shown."""
    return {"better": " ↑", "worse": " ↓"}.get(row.verdict or "", "") if row else ""


def seconds(value: float | None) -> str:
    """Seconds, as short as they stay readable."""
    return "–" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def size(value: float | None) -> str:
    """Bytes with a decimal unit."""
    return "–" if value is None else show_bytes(value)


def verdict(row: Row, reference: str) -> str:
    """The verdict of a line, or what it is compared with."""
    return "(reference)" if row.method == reference else row.verdict or "–"


def markdown(comparison: Comparison) -> str:
    """Every grid as a Markdown table; the best value of each size in bold."""
    parts = []
    for grid in grids(comparison):
        titles = ["tier", "dim", "method", *map(metric_title, grid.metrics)]
        titles += [f"against {comparison.reference}", "train s", "size", "seeds"]
        lines = [f"**{grid.title}**", "", _pipes(titles), _pipes(["---"] * len(titles))]
        for line in grid.lines:
            cells = [line.tier, str(line.dim), line.method]
            for metric in grid.metrics:
                row = line.rows.get(metric)
                text = f"**{number(row)}**" if row and row.best else number(row)
                cells.append(text if metric == grid.metrics[0] else text + arrow(row))
            first = line.first
            cells += [verdict(first, comparison.reference), seconds(first.train_seconds)]
            cells += [size(first.bytes), str(first.seeds)]
            lines.append(_pipes(cells))
        if any(arrow(row) for line in grid.lines for row in list(line.rows.values())[1:]):
            lines += ["", f"↑ ↓ shown to be better or worse than {comparison.reference}."]
        if any(line.first.seeds == 1 for line in grid.lines):
            lines += ["", ONE_RUN]
        parts.append("\n".join(lines))
    parts += comparison.notes
    return "\n\n".join(parts) + "\n"


def _pipes(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
