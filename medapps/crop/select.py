"""Which size and number type a device gets: by dim, tier, bytes (budget) or quality (keep)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import polars as pl

from medapps.config import parse_bytes, show_bytes
from medapps.crop.crop import Crop
from medapps.crop.cut import Croppable
from medapps.crop.export import WHOLE, Export, chosen_rows, crop_bytes, without_relations
from medapps.crop.quantize import DTYPES
from medapps.crop.retention import retention_curve, smallest_keeping
from medapps.crop.tiers import CropConfig, find_tier, tier_of
from medapps.errors import MedappsError


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
    embedding: Croppable,
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
