"""A model in training: its tables, how they score, and the optimisers that move them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from medapps.errors import MedappsError
from medapps.model.rule import ScoreSpec
from medapps.model.scorer import Bounds, Scorer, make_scorer
from medapps.train.config import MedConfig
from medapps.train.tables.mmap import working_table
from medapps.train.tables.optimiser import Optimiser, make_optimiser
from medapps.train.tables.rows import blank, fill


@dataclass(frozen=True)
class Model:
    """Both tables with their optimisers; every prefix in `dims` is a sub-model."""

    scorer: Scorer
    dims: tuple[int, ...]
    specs: tuple[ScoreSpec, ...]
    """Scale and margin of each sub-model."""
    entities: Tensor
    relations: Tensor
    entity_optimiser: Optimiser
    relation_optimiser: Optimiser

    @cached_property
    def bounds(self) -> Bounds:
        """Where the segments of an entity's row end."""
        return self.scorer.bounds(self.dims)

    @property
    def device(self) -> torch.device:
        return self.entities.device

    def tables(self) -> dict[str, Tensor]:
        """Both tables by name."""
        return {"entities": self.entities, "relations": self.relations}

    def state(self) -> dict[str, Tensor]:
        """The tables and the state of their optimisers, for a checkpoint."""
        out = self.tables()
        for name, optimiser in (
            ("entity", self.entity_optimiser),
            ("relation", self.relation_optimiser),
        ):
            out |= {f"{name}_{key}": value for key, value in optimiser.state.items()}
        return out


def new_model(
    config: MedConfig,
    entities: int,
    relations: int,
    seed: int,
    *,
    begin: int = 0,
    folder: Path | None = None,
) -> Model:
    """Initial values and fresh optimisers, whose segments are those of the dims.

    `entities` rows of that table from `begin` on; all relations. Working files are in `folder`.
    """
    how, table, device = (
        config.optimiser,
        config.hardware.table,
        pick_device(config.hardware.device),
    )
    scorer = make_scorer(config.scorer, config.norm, from_larger=config.loss.from_larger)
    cuts = [scorer.widths(dim) for dim in config.dims]
    lengths = scorer.rule.lengths(how.init_norm, config.dims[-1], config.norm)
    fresh = partial(working_table, folder) if table == "mmap" else None
    shape, kind = (entities, cuts[-1][0]), torch.bfloat16 if table == "bf16" else torch.float32
    e = fresh(shape) if fresh else blank(shape, device, kind)
    fill(e, seed, 0, lengths[0], begin=begin)
    r = fill(blank((relations, cuts[-1][1]), device), seed, 1, lengths[1])
    if scorer.rule.RELATIONS == "signs":
        r.sign_().mul_(lengths[1] / r.shape[1] ** 0.5)
    make = partial(make_optimiser, how.name, rate_power=how.rate_power)
    length = how.init_norm if how.keep_length else None
    return Model(
        scorer,
        config.dims,
        config.specs,
        e,
        r,
        make(e, (0, *(cut[0] for cut in cuts)), length=length, seed=seed, fresh=fresh),
        make(r, (0, *(cut[1] for cut in cuts)), rate=how.relation_rate),
    )


def pick_device(name: str) -> torch.device:
    """The device of that name; "auto" takes CUDA where it works."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise MedappsError("No CUDA device is usable here.", fix="Use --device cpu.")
    return torch.device(name)
