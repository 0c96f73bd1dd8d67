"""Which size and number type a device gets: by dim, tier, bytes (budget) or quality (keep)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from medapps.config import parse_bytes, show_bytes
from medapps.crop.crop import Crop
from medapps.crop.embedding import Embedding
from medapps.crop.export import WHOLE, Export, chosen_rows, crop_bytes, without_relations
from medapps.crop.quantize import DTYPES, quantize
from medapps.crop.tiers import CropConfig, find_tier, tier_of
from medapps.errors import MedappsError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from medapps.tracking import Run


@dataclass(frozen=True)
class SizeRequest:
    """One of: a dim, a tier's name, a number of bytes (64MB), a share of quality (0.97)."""

    dim: int | None = None
    tier: str | None = None
    budget: str | None = None
    keep: float | None = None


@dataclass(frozen=True)
class Choice:
    """The size and number type of a crop."""

    dim: int
    dtype: str
    tier: str | None = None
    curve: pl.DataFrame | None = None
    """The retention curve, when quality was asked for."""


def choose(
    embedding: Embedding | Crop,
    config: CropConfig,
    wanted: SizeRequest,
    *,
    names: pl.Series | None = None,
    quality: Callable[[Crop], float] | None = None,
) -> Choice:
    """The size and number type that fit the request; `keep` needs a `quality`."""
    given = [name for name, value in vars(wanted).items() if value is not None]
    if len(given) != 1:
        raise MedappsError(
            "No size was asked for." if not given else "More than one size was asked for.",
            fix="Give one of --dim 10, --tier phone, --budget 64MB or --keep 0.97.",
        )
    if wanted.tier is not None:
        tier = find_tier(config, wanted.tier)
        return Choice(tier.dim, config.dtype or tier.dtype, wanted.tier)
    if wanted.dim is not None:
        return Choice(wanted.dim, config.dtype or "float32", tier_of(config, wanted.dim))
    crops = [embedding.crop(dim) for dim in embedding.dims]
    if wanted.budget is not None:
        what = Export(
            form=config.format,
            users_only=config.users_only,
            names=names,
            relations=config.relations,
        )
        dtypes = [config.dtype] if config.dtype else DTYPES
        dim, dtype = fit_budget(parse_bytes(wanted.budget), crops, what, dtypes=dtypes)
        return Choice(dim, dtype, tier_of(config, dim))
    assert wanted.keep is not None and quality is not None
    dtype = config.dtype or "float32"
    curve = retention_curve(crops, quality)
    dim = smallest_keeping(curve, wanted.keep, dtype)
    return Choice(dim, dtype, tier_of(config, dim), curve)


def fit_budget(
    budget: int,
    crops: Iterable[Crop],
    what: Export = WHOLE,
    *,
    dtypes: Iterable[str] = DTYPES,
) -> tuple[int, str]:
    """The largest dim that fits into `budget` bytes, in the most precise number type that fits."""
    if what.form == "parquet":
        raise MedappsError(
            "The size of a Parquet file is not known before it is written, so --budget cannot "
            "choose one.",
            fix="Use --format safetensors or npz.",
        )
    sizes: dict[tuple[int, str], int] = {}
    for crop in crops:
        kept = crop if what.relations else without_relations(crop)
        rows = chosen_rows(kept, what)
        sizes |= {(crop.dim, dtype): crop_bytes(kept, dtype, rows) for dtype in dtypes}
    fitting = [key for key, size in sizes.items() if size <= budget]
    if not fitting:
        dim, dtype = min(sizes, key=lambda key: sizes[key])
        raise MedappsError(
            f"Nothing fits into {show_bytes(budget)}: the smallest crop, dim {dim} as {dtype}, "
            f"takes {show_bytes(sizes[dim, dtype])}.",
            fix="Raise --budget, or keep fewer entities with --users-only or --ids FILE.",
        )
    return max(fitting, key=lambda key: (key[0], sizes[key]))


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
