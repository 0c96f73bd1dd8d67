"""Cutting an embedding to a prefix of its vectors, of a size that was trained or not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from medapps.crop.crop import Crop
from medapps.errors import MedappsError
from medapps.model.rule import ScoreSpec


class Croppable(Protocol):
    """What has prefixes of trained sizes: an Embedding."""

    @property
    def dims(self) -> tuple[int, ...]: ...

    @property
    def specs(self) -> tuple[ScoreSpec, ...]: ...

    def crop(self, dim: int) -> Crop: ...


@dataclass(frozen=True)
class OneSize:
    """A crop that knows no other size than its own, as every baseline is."""

    whole: Crop

    @property
    def dims(self) -> tuple[int, ...]:
        return (self.whole.dim,)

    @property
    def specs(self) -> tuple[ScoreSpec, ...]:
        return (self.whole.spec,)

    def crop(self, dim: int) -> Crop:
        assert dim == self.whole.dim, (dim, self.whole.dim)
        return self.whole


def cut(
    embedding: Croppable, dim: int, *, allow_untrained: bool = False
) -> tuple[Crop, str | None]:
    """The crop of size `dim`, and a warning when that size was not trained."""
    warning = check_dim(dim, embedding.dims, allow_untrained=allow_untrained)
    if warning is None:
        return embedding.crop(dim), None
    larger = embedding.crop(min(d for d in embedding.dims if d > dim))
    return narrow(larger, dim, between(dim, embedding.dims, embedding.specs)), warning


def check_dim(dim: int, trained: Sequence[int], *, allow_untrained: bool = False) -> str | None:
    """Refuse a dim that was not trained, naming the nearest ones; a warning when it is allowed."""
    if dim in trained:
        return None
    problem = untrained(dim, trained)
    nearest = min(trained, key=lambda d: (abs(d - dim), d))
    if dim < 1 or dim > max(trained):
        raise MedappsError(problem, fix=f"Use --dim {nearest}.")
    if not allow_untrained:
        raise MedappsError(
            problem,
            fix=f"Use --dim {nearest}, or --allow-untrained to take the first {dim} "
            "coordinates all the same.",
        )
    return f"{problem} Its quality was never trained for nor measured."


def untrained(dim: int, trained: Sequence[int]) -> str:
    """The sentence that names the trained dims and those next to `dim`."""
    beside = [max(d for d in trained if d < dim)] if dim > min(trained) else []
    beside += [min(d for d in trained if d > dim)] if dim < max(trained) else []
    return (
        f"dim {dim} was not trained; trained are {', '.join(map(str, sorted(trained)))}, "
        f"nearest {' and '.join(map(str, beside))}."
    )


def narrow(crop: Crop, dim: int, spec: ScoreSpec) -> Crop:
    """The first `dim` coordinates of a crop, as views, marked as untrained."""
    assert 0 < dim < crop.dim, (dim, crop.dim)
    width = crop.width // crop.dim * dim
    relations = crop.relations
    if relations is not None:
        relations = relations[:, : relations.shape[1] // crop.dim * dim]
    return replace(
        crop,
        entities=crop.entities[:, :width],
        relations=relations,
        dim=dim,
        spec=spec,
        about=crop.about | {"untrained": True},
        manifest=None,
    )


def between(dim: int, dims: Sequence[int], specs: Sequence[ScoreSpec]) -> ScoreSpec:
    """The scale and margin of a dim between trained ones.

    Linear in log(dim); log(scale) so, because c_i is a power of d_n / d_i.
    """
    x = [math.log(d) for d in dims]
    scale = math.exp(np.interp(math.log(dim), x, [math.log(spec.scale) for spec in specs]))
    margin = float(np.interp(math.log(dim), x, [spec.margin for spec in specs]))
    return replace(specs[0], scale=scale, margin=margin)
