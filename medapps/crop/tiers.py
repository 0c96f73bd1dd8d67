"""Tiers, the named sizes of devices, and how a crop is written."""

from __future__ import annotations

import difflib
from typing import Any, Literal

from pydantic import field_validator

from medapps.config import Config, Dim
from medapps.errors import MedappsError
from medapps.methods import TIERS

Dtype = Literal["float32", "float16", "int8"]


class Tier(Config):
    """What a kind of device carries."""

    dim: Dim
    """Size of its crop."""
    dtype: Dtype = "float32"
    """Number type of its vectors."""


DEFAULT_TIERS = {name: Tier(dim=dim) for name, dim in TIERS.items()}


class CropConfig(Config):
    """How a crop is made and written."""

    tiers: dict[str, Tier] = DEFAULT_TIERS
    """Named sizes; those given are added to server 500, pc 100 and phone 10, or replace them."""
    dtype: Dtype | None = None
    """Number type of the vectors; null takes the tier's, else float32."""
    format: Literal["safetensors", "parquet", "npz"] = "safetensors"
    """File format."""
    users_only: bool = False
    """Keep the users and leave out all other entities."""
    relations: bool = True
    """Keep the relations, which scoring triples needs."""
    allow_untrained: bool = False
    """Accept any prefix of the vectors, with a warning and a tag."""
    model: str = "medapps-crop"
    """Name under which crops are registered in MLflow."""

    @field_validator("tiers", mode="before")
    @classmethod
    def _add_defaults(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        short = {
            key: {"dim": value} if isinstance(value, int) else value for key, value in given.items()
        }
        return DEFAULT_TIERS | short


def find_tier(config: CropConfig, name: str) -> Tier:
    """The tier of that name."""
    if name not in config.tiers:
        near = difflib.get_close_matches(name, config.tiers, 1, 0.0)
        raise MedappsError(
            f"There is no tier {name!r}; known are {', '.join(sorted(config.tiers))}.",
            fix=f"Use --tier {near[0]}, or add it: --set crop.tiers.{name}.dim=50.",
        )
    return config.tiers[name]


def tier_of(config: CropConfig, dim: int) -> str | None:
    """The name of the tier with this dim, if there is one."""
    return next((name for name, tier in config.tiers.items() if tier.dim == dim), None)
