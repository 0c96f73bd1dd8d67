"""Which size and number type a device gets, from what the user said about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from medapps.crop.budget import fit_budget
from medapps.crop.crop import Crop
from medapps.crop.cut import Croppable
from medapps.crop.export import chosen_rows
from medapps.crop.quantize import DTYPES
from medapps.crop.retention import retention_curve, smallest_keeping
from medapps.crop.tiers import CropConfig, find_tier, tier_of
from medapps.errors import MedappsError
from medapps.sizes import parse_bytes


@dataclass(frozen=True)
class Wish:
    """One of: a dim, a tier's name, a number of bytes (64MB), a share of quality (0.97)."""

    dim: int | None = None
    tier: str | None = None
    budget: str | None = None
    keep: float | None = None


@dataclass(frozen=True)
class Choice:
    """What the wish comes to."""

    dim: int
    dtype: str
    tier: str | None = None
    curve: pl.DataFrame | None = None
    """The retention curve, when quality was asked for."""


def choose(
    embedding: Croppable,
    config: CropConfig,
    wish: Wish,
    *,
    names: pl.Series | None = None,
    quality: Callable[[Crop], float] | None = None,
) -> Choice:
    """The size and number type that fulfil the wish; `quality` is needed when it says `keep`."""
    given = [value for value in (wish.dim, wish.tier, wish.budget, wish.keep) if value is not None]
    if len(given) != 1:
        raise MedappsError(
            "No size was asked for." if not given else "More than one size was asked for.",
            fix="Give one of --dim 10, --tier phone, --budget 64MB or --keep 0.97.",
        )
    if wish.tier is not None:
        tier = find_tier(config, wish.tier)
        return Choice(tier.dim, config.dtype or tier.dtype, wish.tier)
    dtype: str = config.dtype or "float32"
    curve: pl.DataFrame | None = None
    if wish.dim is not None:
        dim = wish.dim
    elif wish.budget is not None:
        dim, dtype = _fitting(embedding, config, wish.budget, names)
    else:
        assert wish.keep is not None and quality is not None
        crops = (embedding.crop(dim) for dim in embedding.dims)
        curve = retention_curve(crops, quality)
        dim = smallest_keeping(curve, wish.keep, dtype)
    return Choice(dim, dtype, tier_of(config, dim), curve)


def _fitting(
    embedding: Croppable, config: CropConfig, budget: str, names: pl.Series | None
) -> tuple[int, str]:
    if config.format == "parquet":
        raise MedappsError(
            "The size of a Parquet file is not known before it is written, so --budget cannot "
            "choose one.",
            fix="Use --format safetensors or npz.",
        )
    crops = [embedding.crop(dim) for dim in embedding.dims]
    fit = fit_budget(
        parse_bytes(budget),
        crops,
        dtypes=[config.dtype] if config.dtype else DTYPES,
        rows=chosen_rows(crops[0], users_only=config.users_only, names=names),
        relations=config.relations,
    )
    return fit.dim, fit.dtype
