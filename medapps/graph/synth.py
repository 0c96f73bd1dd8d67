"""A synthetic e-commerce social graph with labels, purchases and the latents that caused them.

Nothing is read off the graph: edges, labels and purchases are drawn from the latents separately,
so a label can be predicted from the graph only as far as the graph reveals the latents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from medapps.errors import MedappsError
from medapps.graph.planted import (
    LABELS,
    RELATIONS,
    WIDTH,
    Latents,
    draw_edges,
    draw_labels,
    draw_latents,
    draw_purchases,
)
from medapps.store import MANIFEST, Provenance, read_manifest, writing

LEAST_USERS = 100
REVISION = 1
"""Raised when the same seed gives other bytes than before."""
_ROW_GROUP = 1 << 18


@dataclass(frozen=True)
class Preset:
    """The size of a synthetic data set."""

    users: int
    triples_per_user: float
    topics: int
    """Topics in each facet of life."""
    items: int
    shelves: int
    fewest: int
    """Draws of every user at least; a draw that repeats an item counts once."""
    purchases: float
    """Mean draws of a user."""

    def triples(self, users: int) -> int:
        """Triples of a graph with this many users."""
        return round(users * self.triples_per_user)


PAPER_USERS, PAPER_TRIPLES = 6_974_959, 50_775_620
PRESETS = {
    "tiny": Preset(300, 10.0, 6, 120, 12, 5, 10.0),
    "demo": Preset(4_000, 12.0, 20, 600, 30, 5, 12.0),
    "medium": Preset(20_000, PAPER_TRIPLES / PAPER_USERS, 48, 2_000, 60, 5, 10.0),
    "paper": Preset(PAPER_USERS, PAPER_TRIPLES / PAPER_USERS, 48, 200_000, 240, 3, 4.0),
}


@dataclass(frozen=True)
class Synthetic:
    """What was written, and where."""

    folder: Path
    users: int
    entities: int
    relations: int
    triples: int
    items: int
    interactions: int
    labels: tuple[str, ...]


def synthesize(
    out: str | Path,
    preset: str = "demo",
    users: int | None = None,
    seed: int = 0,
    *,
    force: bool = False,
) -> Synthetic:
    """Write skg, labels, interactions and latents (.parquet); same seed, same bytes.

    A folder that was made in the same way before is kept.
    """
    if preset not in PRESETS:
        raise MedappsError(
            f"There is no preset {preset!r}.", fix=f"Choose one of {', '.join(PRESETS)}."
        )
    plan = PRESETS[preset]
    users = plan.users if users is None else users
    if not LEAST_USERS <= users < 2**31:
        raise MedappsError(
            f"{users:,} users are too few or too many.", fix=f"At least {LEAST_USERS}."
        )
    if seed < 0:
        raise MedappsError(f"The seed must be 0 or more, not {seed}.")
    config = {"preset": preset, "users": users, "seed": seed, "revision": REVISION}
    if not force and (Path(out) / MANIFEST).is_file():
        before = read_manifest(Path(out), kind="dataset")
        if before.config == config:
            return _summary(Path(out), before.about)
    triples = plan.triples(users)
    with writing(Path(out), kind="dataset", provenance=Provenance(config, force=force)) as draft:
        latents = draw_latents(users, plan.topics, seed)
        _sink(draft.path("latents.parquet"), _latent_frames(latents), _LATENTS)
        numbers = {"user": pl.Series(np.arange(users))} | draw_labels(latents, seed)
        draft.table("labels.parquet", pl.DataFrame(numbers).with_columns(_named("user")))
        _sink(draft.path("skg.parquet"), _triple_frames(latents, triples, seed), _TRIPLES)
        bought = _purchase_frames(latents, plan, seed)
        _sink(draft.path("interactions.parquet"), bought, _PURCHASES)
        taken = pl.scan_parquet(draft.path("interactions.parquet"), glob=False)
        rows, items = taken.select(n=pl.len(), i=pl.col("item").n_unique()).collect().row(0)
        draft.about = {
            "users": users,
            "entities": users,
            "relations": len(RELATIONS),
            "triples": triples,
            "items": items,
            "interactions": rows,
        }
    return _summary(Path(out), draft.about)


def _summary(folder: Path, about: dict[str, int]) -> Synthetic:
    return Synthetic(folder, labels=tuple(label.name for label in LABELS), **about)


_TRIPLES = pl.Schema({"head": pl.String, "relation": pl.String, "tail": pl.String})
_PURCHASES = pl.Schema({"user": pl.String, "item": pl.String, "timestamp": pl.Int64})
_LATENTS = pl.Schema([("user", pl.String()), ("latent", pl.Array(pl.Float32, WIDTH))])


def _named(column: str, prefix: str = "user:") -> pl.Expr:
    return (prefix + pl.col(column).cast(pl.String).str.zfill(7)).alias(column)


def _latent_frames(latents: Latents) -> Iterator[pl.DataFrame]:
    for start in range(0, len(latents), _ROW_GROUP):
        place = latents.place[start : start + _ROW_GROUP]
        columns = {"user": np.arange(start, start + len(place)), "latent": place}
        yield pl.DataFrame(columns, schema_overrides={"latent": _LATENTS["latent"]}).with_columns(
            _named("user")
        )


def _triple_frames(latents: Latents, triples: int, seed: int) -> Iterator[pl.DataFrame]:
    for relation, heads, tails in draw_edges(latents, triples, seed):
        for start in range(0, len(heads), _ROW_GROUP):
            part = slice(start, start + _ROW_GROUP)
            frame = pl.DataFrame({"head": heads[part], "tail": tails[part]})
            yield frame.select(
                _named("head"), pl.lit(relation.name).alias("relation"), _named("tail")
            )


def _purchase_frames(latents: Latents, plan: Preset, seed: int) -> Iterator[pl.DataFrame]:
    drawn = draw_purchases(latents, plan.items, plan.shelves, plan.fewest, plan.purchases, seed)
    for frame in drawn:
        yield frame.with_columns(_named("user"), _named("item", "item:"))


def _sink(path: Path, frames: Iterator[pl.DataFrame], schema: pl.Schema) -> None:
    """Write frames to one Parquet file as they come; row groups are of fixed size."""
    lazy = register_io_source(lambda *_: frames, schema=schema)
    lazy.sink_parquet(path, row_group_size=_ROW_GROUP, maintain_order=True)
