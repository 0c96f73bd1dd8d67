"""Report: the result of a task for one method and dimension, with what a fair comparison needs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from medapps.arrays import open_arrays
from medapps.store import NEW, Provenance, read_manifest, usable, writing


@dataclass(frozen=True, kw_only=True, repr=False)
class Report:
    """Metrics per seed, per-unit values for paired tests, and cost."""

    task: str
    """label, recommend or rank."""
    method: str
    dim: int = 0
    """Size of the vectors; 0 where there is none."""
    data: str = ""
    """Name of the data set."""
    seeds: tuple[int, ...] = (0,)
    by_seed: dict[str, list[float]] = field(default_factory=dict)
    """Metric name to one value per seed."""
    units: dict[str, np.ndarray] = field(default_factory=dict)
    """Metric name to float32 (seeds, units): one value per user or query, for paired comparison."""
    unit_digest: str = ""
    """Digest of the split that the units come from; only equal ones may be paired."""
    cost: dict[str, float] = field(default_factory=dict)
    """train_seconds, bytes."""
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    """JSON-able facts: label column, users, items, controls, ..."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value:.3f}" for name, value in list(self.metrics.items())[:3])
        where = f" on {self.data}" if self.data else ""
        return f"Report({self.task} of {self.method} at {self.dim}{where}: {shown})"

    @property
    def metrics(self) -> dict[str, float]:
        """Means over the seeds."""
        return {name: float(np.mean(values)) for name, values in self.by_seed.items()}

    def save(self, folder: Path, provenance: Provenance = NEW) -> Report:
        """Write the report as a folder and return it."""
        with writing(folder, kind="report", provenance=provenance) as draft:
            draft.arrays("units.safetensors", self.units)
            for name, table in self.tables.items():
                draft.table(f"{name}.parquet", table)
            plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "units"}
            draft.about = plain | {"tables": sorted(self.tables)}
            draft.metrics = self.metrics
        return self

    @classmethod
    @usable("report")
    def load(cls, folder: Path) -> Report:
        """Read a report back."""
        folder = Path(folder)
        about = dict(read_manifest(folder, kind="report").about)
        tables = {
            name: pl.read_parquet(folder / f"{name}.parquet", glob=False)
            for name in about["tables"]
        }
        units = open_arrays(folder / "units.safetensors")
        return cls(**about | {"seeds": tuple(about["seeds"]), "units": units, "tables": tables})
