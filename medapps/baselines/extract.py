"""Ext, Ext-L, Ext-V and PCA: a small model made of the teacher without training.

Ext keeps the first coordinates as they are, Ext-L those whose loss on validation triples rises most
when they are left out, Ext-V those with the largest mean absolute value. A coordinate is all reals
that belong to it, so that scorers with several reals per coordinate keep them together. PCA turns
entities onto their principal axes:

    E' = (E - mean) P,   R' = R P,   P with orthonormal columns

Since h - t is free of the mean, h' + r' - t' = (h + r - t) P: the projected model is itself a
TransE model and, when nothing is cut off, has the same scores. Where a rotation changes the scores
it has no such meaning, and the crop then carries no relations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from medapps.baselines.config import ExtractConfig
from medapps.baselines.request import BaselineRequest, Made, crop_of
from medapps.crop.crop import Crop
from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.model.rule import Scorer, ScoreSpec
from medapps.model.rules import RULES, make_scorer
from medapps.train.loss.med import FAR
from medapps.train.order import NEGATIVES, split_validation, stream

BLOCK = 2**24
"""Numbers (triples x negatives x coordinates) that are worked on at a time."""
ROWS = 65_536
"""Rows of a table that are worked on at a time."""
MANY = 1_000_000
"""Tables with more rows have their principal axes taken block by block."""


def columns_of(coordinates: np.ndarray, width: int, dim: int) -> np.ndarray:
    """The columns of `coordinates` in a table of `width` reals whose vectors have `dim` of them."""
    reals, rest = divmod(width, dim)
    assert rest == 0, (width, dim)
    return (np.asarray(coordinates)[:, None] * reals + np.arange(reals)).reshape(-1)


def take(table: np.ndarray, coordinates: np.ndarray, dim: int) -> np.ndarray:
    """float32 (rows, kept reals): the table with only these coordinates, in this order."""
    columns = columns_of(coordinates, table.shape[1], dim)
    return np.ascontiguousarray(np.asarray(table)[:, columns], np.float32)


def first(dim: int) -> np.ndarray:
    """Ext: coordinates 0 to dim - 1."""
    return np.arange(dim)


def largest(importance: np.ndarray, dim: int) -> np.ndarray:
    """The `dim` most important coordinates, most important first; ties by position."""
    return np.argsort(-importance, kind="stable")[:dim]


def by_value(teacher: Crop) -> np.ndarray:
    """Ext-V: mean absolute value of every coordinate over all entities and relations, (dim,);
    relations that are angles do not count.
    """
    total, rows = np.zeros(teacher.dim), 0
    angles = RULES[teacher.spec.scorer].RELATIONS == "angles"
    for table in (teacher.entities, None if angles else teacher.relations):
        if table is None:
            continue
        for start in range(0, len(table), ROWS):
            part = np.abs(np.asarray(table[start : start + ROWS], np.float64))
            total += part.reshape(len(part), teacher.dim, -1).mean(2).sum(0)
        rows += len(table)
    return total / rows


def by_loss(
    teacher: Crop,
    graph: Graph,
    sample: ExtractConfig,
    *,
    temperature: float,
    seed: int,
) -> np.ndarray:
    """Ext-L: how much the validation loss rises when a coordinate is dropped, (dim,).

    The loss is the one of the training; all coordinates share one sample of negatives, and the
    contribution of each is subtracted from the distance, so that nothing is scored again.
    """
    assert teacher.relations is not None and len(graph.valid)
    draws, negatives = stream(seed, NEGATIVES), sample.negatives
    count = min(sample.triples, len(graph.valid))
    picked = np.asarray(graph.valid)[np.sort(draws.choice(len(graph.valid), count, replace=False))]
    others = draws.integers(0, len(teacher.entity_ids), negatives)
    rise = torch.zeros(teacher.dim, dtype=torch.float64)
    size = max(1, BLOCK // (negatives * teacher.dim))
    scorer = make_scorer(teacher.spec.scorer, teacher.spec.norm)
    for side, (given, asked) in {"tail": (0, 2), "head": (2, 0)}.items():
        for start in range(0, count, size):
            part = picked[start : start + size]
            source, target = (torch.from_numpy(teacher.rows(part[:, i])) for i in (given, asked))
            relation = torch.from_numpy(np.asarray(teacher.relations[part[:, 1]], np.float32))
            query = scorer.query(source, relation, side)
            against = torch.from_numpy(teacher.rows(others))
            true = torch.from_numpy(part[:, asked, None] == others)  # (b, K)
            terms = (
                scorer.terms(query, target, teacher.dim),  # (b, dim)
                scorer.terms(query.unsqueeze(1), against.unsqueeze(0), teacher.dim),  # (b, K, dim)
            )
            loss = _Loss(scorer, teacher.spec, true, temperature)
            rise += loss.rise(*terms)
    return (rise / (2 * count)).numpy()


@dataclass(frozen=True)
class _Loss:
    """The loss of a training on some queries, as a function of what coordinates add."""

    scorer: Scorer
    spec: ScoreSpec
    true: Tensor
    """(b, K): negatives that are the true entity."""
    temperature: float

    def rise(self, positive: Tensor, negative: Tensor) -> Tensor:
        """Sum over queries of loss without coordinate k minus loss, (dim,) float64."""
        total = positive.sum(-1, keepdim=True), negative.sum(-1, keepdim=True)
        without = self(total[0] - positive, total[1] - negative)
        return (without - self(*total)).sum(0, dtype=torch.float64)

    def __call__(self, positive: Tensor, negative: Tensor) -> Tensor:
        """Per query and coordinate set: sums (b, c) and (b, K, c) to (b, c)."""
        s = self._score(negative).masked_fill(self.true.unsqueeze(-1), -FAR)
        hardness = torch.softmax(self.temperature * s, 1)
        return softplus(-self._score(positive)) + (hardness * softplus(s)).sum(1)

    def _score(self, total: Tensor) -> Tensor:
        return self.spec.margin - self.spec.scale * self.scorer.total(total)


def ext(request: BaselineRequest) -> Crop:
    """The first coordinates of the teacher."""
    return _extracted(request, lambda: first(request.dim))


def measured_on(request: BaselineRequest) -> Graph:
    """The graph with validation triples: its own, else those that the training of MED holds out."""
    graph, train = request.graph, request.train
    _, found = split_validation(graph, train, request.session.seed)
    if not len(found):
        raise MedappsError(
            f"ext-l measures coordinates on validation triples, {graph.name} has none, and the "
            "training holds none out.",
            fix="Put a valid.parquet beside the graph, hold some out with --set train.patience=5, "
            "or take ext-v.",
        )
    return graph if len(graph.valid) else replace(graph, valid=found)


def ext_l(request: BaselineRequest) -> Crop:
    """The coordinates without which the validation loss would rise most."""
    graph = measured_on(request)
    if not len(request.graph.valid):
        said = f"ext-l measures coordinates on {len(graph.valid):,} triples that MED holds out"
        request.session.say(f"{said}; the teacher has seen them.")
    return _extracted(
        request,
        lambda: largest(
            by_loss(
                request.teacher,
                graph,
                request.config.ext,
                temperature=request.train.temperatures[-1],
                seed=request.session.seed,
            ),
            request.dim,
        ),
    )


def ext_v(request: BaselineRequest) -> Crop:
    """The coordinates with the largest mean absolute value."""
    return _extracted(request, lambda: largest(by_value(request.teacher), request.dim))


def _extracted(request: BaselineRequest, pick: Callable[[], np.ndarray]) -> Crop:
    began, teacher = perf_counter(), request.teacher
    assert teacher.relations is not None
    kept = pick()
    tables = (take(table, kept, teacher.dim) for table in (teacher.entities, teacher.relations))
    entities, relations = tables
    about = {"coordinates": [int(k) for k in kept]}
    seconds = perf_counter() - began
    made = Made(entities, relations, teacher.spec, seconds, teacher, about)
    return crop_of(request, made)


@dataclass(frozen=True)
class Axes:
    """An affine map onto principal axes."""

    mean: np.ndarray
    """float32 (width,)."""
    axes: np.ndarray
    """float32 (width, dim): orthonormal columns, most variance first."""
    explained: float
    """Share of the variance that is kept."""


def principal_axes(table: np.ndarray, dim: int, *, many: int = MANY) -> Axes:
    """The `dim` principal axes of a table's rows; exact up to `many` rows, in blocks beyond."""
    from sklearn.decomposition import PCA, IncrementalPCA  # takes a while to load

    if len(table) <= many:
        model = PCA(dim, svd_solver="covariance_eigh").fit(np.asarray(table, np.float32))
    else:
        model = IncrementalPCA(dim)
        for start in range(0, len(table), ROWS):
            part = np.asarray(table[start : start + ROWS], np.float32)
            if len(part) >= dim:  # a last block smaller than dim cannot be fitted
                model.partial_fit(part)
    return Axes(
        model.mean_.astype(np.float32),
        np.ascontiguousarray(model.components_.T, np.float32),
        float(model.explained_variance_ratio_.sum()),
    )


def project(table: np.ndarray, axes: Axes, *, centre: bool) -> np.ndarray:
    """float32 (rows, dim): rows turned onto the axes, in blocks."""
    out = np.empty((len(table), axes.axes.shape[1]), np.float32)
    for start in range(0, len(table), ROWS):
        part = np.asarray(table[start : start + ROWS], np.float32)
        out[start : start + ROWS] = (part - axes.mean if centre else part) @ axes.axes
    return out


def pca(request: BaselineRequest) -> Crop:
    """The teacher's entities on their principal axes."""
    began, teacher = perf_counter(), request.teacher
    assert teacher.relations is not None
    axes = principal_axes(teacher.entities, request.dim)
    entities = project(teacher.entities, axes, centre=True)
    free = RULES[teacher.spec.scorer].ROTATION_FREE
    relations = project(teacher.relations, axes, centre=False) if free else None
    about = {"explained_variance": axes.explained}
    seconds = perf_counter() - began
    return crop_of(request, Made(entities, relations, teacher.spec, seconds, teacher, about))
