"""Service vectors: what a task reads from a crop, and the controls that stand in for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl

from medapps.crop.quantize import refuse_broken
from medapps.errors import MedappsError
from medapps.graph.ids import IdMap
from medapps.methods import CONTROLS

_ROWS = 65_536
"""Rows of vectors that are worked on at a time, so that no second table of float64 is made."""


class Source(Protocol):
    """Anything that gives named vectors: a Crop, a control, a table of one's own."""

    @property
    def dim(self) -> int: ...

    @property
    def method(self) -> str: ...

    @property
    def id_type(self) -> type[pl.DataType]:
        """The polars type of its names."""
        ...

    def vectors(self, names: pl.Series) -> tuple[np.ndarray, np.ndarray]:
        """float32 (k, width) and known bool (k,); zeros for unknown names."""
        ...


@dataclass(frozen=True)
class NamedVectors:
    """A table of vectors by name."""

    names: IdMap
    values: np.ndarray  # (n, dim) float32
    method: str

    @property
    def dim(self) -> int:
        return self.values.shape[1]

    @property
    def id_type(self) -> type[pl.DataType]:
        return self.names.dtype

    def vectors(self, names: pl.Series) -> tuple[np.ndarray, np.ndarray]:
        ids = self.names.ids(names)
        known = ids >= 0
        out = np.zeros((len(ids), self.dim), np.float32)
        out[known] = self.values[ids[known]]
        return out, known


@dataclass(frozen=True)
class UserVectors:
    """Raw vectors of the users of a task, and which of them the source knows."""

    values: np.ndarray  # (users, width) float32, zeros where unknown
    known: np.ndarray  # (users,) bool
    dim: int
    method: str

    @property
    def missing(self) -> int:
        """How many users the source does not know."""
        return int((~self.known).sum())


def finite_vectors(source: Source, names: pl.Series) -> tuple[np.ndarray, np.ndarray]:
    """`source.vectors(names)`; refuses broken numbers."""
    values, known = source.vectors(names)
    refuse_broken(values, lambda row: names[row], "user ")
    return values, known


def user_vectors(source: Source, users: IdMap) -> UserVectors:
    """Vectors of all `users`; refuses a source that knows none of them or holds broken numbers."""
    names = users.names()
    values, known = finite_vectors(source, names)
    if not known.any():
        raise MedappsError(
            f"None of the {len(users)} users is in the graph that the vectors come from "
            f"(the first is {names[0]!r}).",
            fix="Check that both files name users the same way, e.g. with medapps data check.",
        )
    return UserVectors(np.asarray(values, np.float32), known, source.dim, source.method)


def control(name: str, real: UserVectors, seed: int) -> UserVectors:
    """What stands in for the vectors of the same users.

    random: Gaussian numbers of the same size, input width without information. shuffled: the same
    vectors handed to the wrong users, information without meaning.
    """
    rng = np.random.default_rng([seed, CONTROLS.index(name)])
    values = np.empty_like(real.values)
    if name == "random":
        for start in range(0, len(values), _ROWS):
            part = values[start : start + _ROWS]
            part[:] = rng.standard_normal(part.shape)
        values[~real.known] = 0
    else:
        order, rows = np.arange(len(values)), np.flatnonzero(real.known)
        order[rows] = rng.permutation(rows)
        np.take(real.values, order, axis=0, out=values, mode="clip")  # "raise" makes a copy
    return UserVectors(values, real.known, real.dim, name)


@dataclass(frozen=True)
class Scaling:
    """Centre and deviation from the training users, so that sources of any scale are alike."""

    mean: np.ndarray  # (width,) float32
    deviation: np.ndarray  # (width,) float32, never zero

    @staticmethod
    def fit(values: np.ndarray, whole: bool = False) -> Scaling:
        mean = _mean(values, lambda part: part)
        square = _mean(values, lambda part: (part - mean) ** 2)
        if whole:
            square = np.full_like(square, square.mean())
        deviation = np.sqrt(square)
        deviation[deviation < 1e-12] = 1.0
        return Scaling(mean.astype(np.float32), deviation.astype(np.float32))

    def apply(self, values: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Standardised vectors with a last column that is 1 where the user is missing."""
        out = np.zeros((len(values), values.shape[1] + 1), np.float32)
        scaled = out[:, :-1]
        np.subtract(values, self.mean, out=scaled)
        scaled /= self.deviation
        out[~known] = [0] * values.shape[1] + [1]
        return out


def _mean(values: np.ndarray, of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """float64 (width,): the mean of a function of rows, which are added in their order."""
    total = np.zeros((1, values.shape[1]))
    for start in range(0, len(values), _ROWS):
        part = of(values[start : start + _ROWS])
        total = np.concatenate([total, part]).sum(0, keepdims=True)
    return total[0] / len(values)
