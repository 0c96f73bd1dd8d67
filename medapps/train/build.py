"""The parts of a training, made from its config: tables with optimisers, and sub-models."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from medapps.crop.score import ScoreSpec
from medapps.errors import MedappsError
from medapps.model.scorer import Scorer, bounds_of
from medapps.train.config import MedConfig
from medapps.train.loss.loss_weight import shares
from medapps.train.loss.submodels import SubModels
from medapps.train.step import Tables, Tiers
from medapps.train.tables.mmap import working_table
from medapps.train.tables.optimiser import make_optimiser
from medapps.train.tables.rows import blank, fill, start_table


def make_tables(
    config: MedConfig,
    scorer: Scorer,
    entities: int,
    relations: int,
    seed: int,
    device: torch.device,
    *,
    begin: int = 0,
    folder: Path | None = None,
) -> Tables:
    """Start values and fresh optimisers, whose segments are those of the dims.

    `entities` rows of that table from `begin` on; all relations. Working files are in `folder`.
    """
    cuts = [scorer.widths(dim) for dim in config.dims]
    lengths = scorer.rule.lengths(config.optimiser.init_norm, config.dims[-1], config.norm)
    kind = torch.bfloat16 if config.hardware.table == "bf16" else torch.float32
    fresh = partial(working_table, folder) if config.hardware.table == "mmap" else None
    shape = (entities, cuts[-1][0])
    e = fresh(shape) if fresh else blank(shape, device, kind)
    fill(e, seed, 0, lengths[0], begin=begin)
    r = start_table(seed, 1, relations, cuts[-1][1], lengths[1], device)
    if scorer.rule.RELATIONS == "signs":
        r.sign_().mul_(lengths[1] / r.shape[1] ** 0.5)
    make = partial(make_optimiser, config.optimiser.name, rate_power=config.optimiser.rate_power)
    length = config.optimiser.init_norm if config.optimiser.keep_length else None
    return Tables(
        e,
        r,
        make(e, (0, *(cut[0] for cut in cuts)), length=length, seed=seed, fresh=fresh),
        make(r, (0, *(cut[1] for cut in cuts)), rate=config.optimiser.relation_rate),
    )


def make_tiers(
    config: MedConfig,
    scorer: Scorer,
    device: torch.device,
    w3: float,
) -> Tiers:
    """All sub-models, their losses weighted by w3."""
    share = shares(config.loss.dlw, w3, config.dims)
    return Tiers(
        config.dims,
        bounds_of(scorer, config.dims),
        SubModels.of(
            config.scales,
            config.margins,
            share.tolist(),
            config.temperatures,
            config.distils,
            device,
        ),
    )


def specs_of(config: MedConfig) -> tuple[ScoreSpec, ...]:
    """How each prefix scores."""
    return tuple(
        ScoreSpec(scorer=config.scorer, norm=config.norm, scale=scale, margin=margin)
        for scale, margin in zip(config.scales, config.margins, strict=True)
    )


def pick_device(name: str) -> torch.device:
    """The device of that name; "auto" takes CUDA where it works."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise MedappsError("No CUDA device is usable here.", fix="Use --device cpu.")
    return torch.device(name)
