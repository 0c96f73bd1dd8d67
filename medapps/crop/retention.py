"""How much of the full model's quality each size and number type keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from medapps.crop.crop import Crop
from medapps.crop.export import crop_bytes
from medapps.crop.quantize import DTYPES, quantize
from medapps.errors import MedappsError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from medapps.tracking import Run

Quality = Callable[[Crop], float]
"""The quality of a crop, larger is better: MRR on validation triples."""


def as_dtype(crop: Crop, dtype: str) -> Crop:
    """The crop in another number type, in memory."""
    vectors, scale = quantize(crop.rows(slice(None)), dtype)
    return replace(crop, entities=vectors, scale=scale, manifest=None)


def retention_curve(crops: Iterable[Crop], quality: Quality) -> pl.DataFrame:
    """A row per dim and dtype: dim, dtype, bytes, mrr, `kept` (share of the full model's mrr).

    `crops` are the float32 crops of all trained dims; the largest of them is the full model.
    """
    rows = [
        (crop.dim, dtype, crop_bytes(crop, dtype), quality(as_dtype(crop, dtype)))
        for crop in crops
        for dtype in DTYPES
    ]
    schema = {"dim": pl.Int64, "dtype": pl.String, "bytes": pl.Int64, "mrr": pl.Float64}
    curve = pl.DataFrame(rows, schema, orient="row").sort("dim", maintain_order=True)
    return curve.with_columns(kept=pl.col("mrr") / _full_quality(curve))


def _full_quality(curve: pl.DataFrame) -> float:
    """The quality of the largest dim as float32."""
    return float(curve.filter(dtype="float32")["mrr"][-1])


def check_share(share: float) -> None:
    """Refuse what is no share, before anything is measured."""
    if not 0 < share <= 1:
        raise MedappsError(f"--keep takes a share between 0 and 1, not {share:g}.", fix="Try 0.97.")


def smallest_keeping(curve: pl.DataFrame, share: float, dtype: str = "float32") -> int:
    """The smallest dim that keeps `share` of the full model's quality in that number type."""
    check_share(share)
    enough = curve.filter((pl.col("dtype") == dtype) & (pl.col("kept") >= share - 1e-12))
    if enough.is_empty():
        best = curve.filter(pl.col("dtype") == dtype).sort("kept").tail(1)
        raise MedappsError(
            f"No dim keeps {share:.0%} of the full model's quality as {dtype}; the best, dim "
            f"{best['dim'][0]}, keeps {best['kept'][0]:.1%}.",
            fix="Lower --keep or use --dtype float32.",
        )
    return int(enough["dim"].min())  # type: ignore[arg-type]


def log_curve(run: Run, curve: pl.DataFrame) -> None:
    """Metrics by dim, the table and the plot, in the run."""
    for dim, dtype, size, mrr, kept in curve.iter_rows():
        run.metrics({f"mrr_{dtype}": mrr, f"kept_{dtype}": kept, f"bytes_{dtype}": size}, dim)
    run.text(curve.write_csv(), "retention.csv")
    run.figure(plot_curve(curve), "retention.png")


def plot_curve(curve: pl.DataFrame) -> Figure:
    """Quality over bytes, one line per number type, each point labelled with its dim."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for (dtype,), part in curve.group_by("dtype", maintain_order=True):
        axes.plot(part["bytes"] / 1e6, part["mrr"], marker="o", label=dtype)
        for dim, size, value in part.select("dim", "bytes", "mrr").iter_rows():
            axes.annotate(str(dim), (size / 1e6, value), xytext=(4, 4), textcoords="offset points")
    axes.axhline(_full_quality(curve), color="grey", linestyle=":", label="full model")
    axes.set(xscale="log", xlabel="crop, MB", ylabel="MRR")
    axes.set_ylim(0, float(np.nanmax(curve["mrr"].to_numpy())) * 1.1 or 1)
    axes.legend()
    return figure
