"""Results as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Column, Table

if TYPE_CHECKING:
    import polars as pl


def facts(values: Mapping[str, Any]) -> Table:
    """Name and value, one line each; nested values are left to --json."""
    table = Table(Column(style="bold"), Column(), show_header=False, box=None, pad_edge=False)
    for name, value in values.items():
        if not isinstance(value, Mapping):
            table.add_row(name, cell(value))
    return table


def rows(frame: pl.DataFrame, title: str | None = None) -> Table:
    """A data frame, one line per row; numbers on the right."""
    sides = ("right" if kind.is_numeric() else "left" for kind in frame.dtypes)
    columns = (Column(n, justify=side) for n, side in zip(frame.columns, sides, strict=True))  # type: ignore[arg-type]
    table = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False)
    for row in frame.iter_rows():
        table.add_row(*(cell(value) for value in row))
    return table


def cell(value: object) -> str:
    """A value as short as it stays readable."""
    if isinstance(value, bool) or value is None:
        return "–" if value is None else str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(part) for part in value)
    return str(value)
