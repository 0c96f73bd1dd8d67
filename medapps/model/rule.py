"""What a scorer is: how it scores on a device, how it makes queries, and what it is able to do.

A *source* is the given end of a triple and the *target* the asked one (side "tail": head given;
side "head": tail given). Source and relation make a *query*, which meets a target in a distance D;
the score is margin - scale * D. Nothing here imports torch, since devices load it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from medapps.errors import MedappsError

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-12
"""Added under square roots, in training and on devices alike."""
Bounds = tuple[int, ...]
"""(0, w_1, ..., w_n): segment j is columns bounds[j] to bounds[j + 1] of an entity."""
Rows: TypeAlias = np.ndarray
"""float32 (k, reals)."""
Ends: TypeAlias = "tuple[Tensor, Tensor]"
"""Rows that meet, or the gradients of both: source and relation, or query and entity."""


@dataclass(frozen=True)
class ScoreSpec:
    """Everything that turns vectors into a score: margin - scale * distance."""

    scorer: str = "transe"
    norm: str = "l2"
    """One of the norms that the scorer knows."""
    scale: float = 1.0
    """c_i: multiplies the distance of this prefix."""
    margin: float = 0.0


@dataclass(frozen=True)
class Measure:
    """How a query meets an entity, and what follows from it."""

    kernel: str
    """Module and class in medapps/model/kernels that compute it for all prefixes."""
    is_distance: bool = True
    """Never negative: no score exceeds its margin."""
    sums: bool = False
    """Adds absolute values, so that it grows in proportion to the dims."""
    supports_drop: bool = False
    """A zero in the relation leaves the coordinate out."""
    scale_free: bool = False
    """Does not depend on the length of an entity."""


EUCLIDEAN = Measure("euclidean.Euclidean")


MODULUS = Measure("modulus.Modulus", sums=True)


BILINEAR = Measure("bilinear.Bilinear", is_distance=False, supports_drop=True)


PAIRRE_L2 = Measure("pairre.PairreL2", supports_drop=True, scale_free=True)


PAIRRE_L1 = Measure("pairre.PairreL1", sums=True, supports_drop=True, scale_free=True)


AUTOGRAD = Measure("autograd.Autograd", is_distance=False)


class Rule(ABC):
    """A scorer; reals of a coordinate stand side by side, so that a prefix is a smaller model."""

    REALS: ClassVar[tuple[int, int, int]]
    """Reals per coordinate of an entity, a relation and a query."""
    NORMS: ClassVar[Mapping[str, Measure]]
    """Norms that it knows, the usual one first, and how a query meets a target under each."""
    RELATIONS: str = "plain"
    """What a relation's numbers are: "plain" (uniform at the start), "signs" (plain, but of one
    size at the start), or "angles", whose size says nothing.
    """
    ROTATION_FREE: bool = False
    """Turning entities and relations by one rotation leaves every score as it is."""
    DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    """Settings of a training that suit this scorer where none are given."""

    @abstractmethod
    def score(self, head: Rows, relation: Rows, tail: Rows, spec: ScoreSpec) -> np.ndarray:
        """float32 (k,): what a device computes."""

    def lengths(self, size: float, dim: int, norm: str) -> tuple[float, float]:
        """Expected initial lengths of an entity and a relation under a norm."""
        return size, size

    @abstractmethod
    def query(self, source: Tensor, relation: Tensor, side: str, out: Tensor) -> Tensor:
        """(B, query reals) into `out`."""

    @abstractmethod
    def query_backward(self, dquery: Tensor, ends: Ends, side: str, grads: Ends) -> None:
        """Write the gradients of the ends, source and relation rows."""


class AutogradRule(Rule):
    """A scorer that is one differentiable function: slow, but right without a line of calculus.

    The query is source, relation and side, one after another, so `distance` sees the plain rows.
    """

    NORMS: ClassVar = {"autograd": AUTOGRAD}

    @abstractmethod
    def distance(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        """(...,) of rows (..., reals) that broadcast, by differentiable operations."""

    def query(self, source: Tensor, relation: Tensor, side: str, out: Tensor) -> Tensor:
        width, end = source.shape[1], source.shape[1] + relation.shape[1]
        out[:, :width] = source
        out[:, width:end] = relation
        out[:, end:] = float(side == "tail")
        return out

    def query_backward(self, dquery: Tensor, ends: Ends, side: str, grads: Ends) -> None:
        width = grads[0].shape[1]
        grads[0].copy_(dquery[:, :width])
        grads[1].copy_(dquery[:, width : width + grads[1].shape[1]])


@dataclass(frozen=True)
class Scorer(ABC):
    """Base of the kernels: holds the rule that makes the queries it measures.

    `aligned` is each query against its own K entities, `pairs` each query against all N. What a
    query holds is agreed between the kernel and the rule.
    """

    rule: Rule
    norm: str
    from_larger: float = 1.0
    """Fraction of a sub-model's gradient that reaches the next smaller one."""

    @property
    def measure(self) -> Measure:
        """What it is able to do."""
        return self.rule.NORMS[self.norm]

    def widths(self, dim: int) -> tuple[int, int, int]:
        """Reals per entity, per relation and per query at `dim`."""
        entity, relation, query = self.rule.REALS
        return dim * entity, dim * relation, dim * query

    def bounds(self, dims: tuple[int, ...]) -> Bounds:
        """Segment bounds in reals of an entity."""
        return (0, *(self.widths(dim)[0] for dim in dims))

    def query(self, source: Tensor, relation: Tensor, side: str) -> Tensor:
        """(B, query reals) of source (B, width) and relation rows."""
        entity, _, query = self.rule.REALS
        out = source.new_empty(len(source), source.shape[1] // entity * query)
        return self.rule.query(source, relation, side, out)

    def shares(self, i: int, bounds: Bounds, like: Tensor) -> Tensor:
        """(width of prefix i,): what fraction of sub-model i's gradient a column takes."""
        powers = self.from_larger ** like.new_tensor([*range(i, -1, -1)])
        return powers.repeat_interleave(like.new_tensor(bounds[: i + 2]).diff().long())

    @abstractmethod
    def aligned(self, query: Tensor, entity: Tensor, bounds: Bounds) -> tuple[Tensor, Any]:
        """Distances (n, B, K) of query (B, q) to its own entity (B, K, width), and what to keep."""

    @abstractmethod
    def aligned_backward(self, grad: Tensor, distance: Tensor, kept: Any, bounds: Bounds) -> Ends:
        """Gradients of query (B, q) and entity (B, K, width); overwrites grad and kept."""

    @abstractmethod
    def pairs(self, query: Tensor, entity: Tensor, bounds: Bounds, out: Tensor) -> Tensor:
        """Distances of query (B, q) to every entity (N, width), into out (n, B, N)."""

    @abstractmethod
    def pairs_backward(
        self, grad: Tensor, distance: Tensor, ends: Ends, bounds: Bounds, grads: Ends
    ) -> None:
        """Add to the gradients of the ends, query and entity; grad (n, B, N) is overwritten."""

    @abstractmethod
    def slack(self, query: Tensor, entity: Tensor, distance: Tensor, bounds: Bounds) -> Tensor:
        """(n, B): how far float32 `pairs` of query and entity may be off around distance (n, B)."""

    def terms(self, query: Tensor, entity: Tensor, dim: int) -> Tensor:
        """(..., dim): what each coordinate adds for query (..., q) and entity (..., width)."""
        raise MedappsError(
            "This scorer does not say what a coordinate adds, which ext-l needs.",
            fix="Take ext or ext-v.",
        )

    def total(self, terms: Tensor) -> Tensor:
        """The distance whose terms have this sum."""
        return terms
