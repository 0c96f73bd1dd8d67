"""Reports side by side: one table with intervals, verdicts and plots."""

from __future__ import annotations

from medapps.comparison.table import Comparison, compare

__all__ = ["Comparison", "compare"]
