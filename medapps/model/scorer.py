"""A scorer as training and ranking use it: distances of all prefixes in one pass, and backward.

query = rule.query(source, relation, side)     one vector per positive
D_i   = pairs or aligned(query, entity)        for every prefix i in one pass
s_i   = m_i - c_i D_i                          (margin m_i and scale c_i belong to the loss)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import Tensor

from medapps.errors import MedappsError
from medapps.model.rule import Measure, Rule
from medapps.model.rules import RULES

Bounds = tuple[int, ...]
"""(0, w_1, ..., w_n): segment j is columns bounds[j] to bounds[j + 1] of an entity."""


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

    @abstractmethod
    def aligned(self, query: Tensor, entity: Tensor, bounds: Bounds) -> tuple[Tensor, Any]:
        """Distances (n, B, K) of query (B, q) to its own entity (B, K, width), and what to keep."""

    @abstractmethod
    def aligned_backward(
        self, grad: Tensor, distance: Tensor, kept: Any, bounds: Bounds
    ) -> tuple[Tensor, Tensor]:
        """Gradients of query (B, q) and entity (B, K, width); overwrites grad and kept."""

    @abstractmethod
    def pairs(self, query: Tensor, entity: Tensor, bounds: Bounds, out: Tensor) -> Tensor:
        """Distances of query (B, q) to every entity (N, width), into out (n, B, N)."""

    @abstractmethod
    def pairs_backward(
        self,
        grad: Tensor,
        distance: Tensor,
        ends: tuple[Tensor, Tensor],
        bounds: Bounds,
        grads: tuple[Tensor, Tensor],
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


def make_scorer(name: str, norm: str | None = None, *, from_larger: float = 1.0) -> Scorer:
    """The scorer of that name, with its usual norm if none is given."""
    return scorer_of(RULES[name], norm, from_larger=from_larger)


def scorer_of(rule: Rule, norm: str | None = None, *, from_larger: float = 1.0) -> Scorer:
    """The kernel of a rule's norm; its module is loaded when it is needed."""
    norm = norm or next(iter(rule.NORMS))
    module, _, kind = rule.NORMS[norm].kernel.partition(".")
    kernel: type[Scorer] = getattr(import_module(f"medapps.model.kernels.{module}"), kind)
    return kernel(rule, norm, from_larger)
