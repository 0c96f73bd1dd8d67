"""PCA of the teacher's entity vectors.

    E' = (E - mean) P,   R' = R P,   P with orthonormal columns

Since h - t is free of the mean, h' + r' - t' = (h + r - t) P: the projected model is itself a
TransE model and, when nothing is cut off, has the same scores. Where a rotation changes the scores
it has no such meaning, and the crop then carries no relations.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np
from sklearn.decomposition import PCA, IncrementalPCA

from medapps.baselines.request import BaselineRequest, Made, crop_of
from medapps.crop.crop import Crop
from medapps.model.rules import RULES

MANY = 1_000_000
"""Tables with more rows are read in blocks."""
BLOCK = 65_536


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
    if len(table) <= many:
        model = PCA(dim, svd_solver="covariance_eigh").fit(np.asarray(table, np.float32))
    else:
        model = IncrementalPCA(dim)
        for start in range(0, len(table), BLOCK):
            part = np.asarray(table[start : start + BLOCK], np.float32)
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
    for start in range(0, len(table), BLOCK):
        part = np.asarray(table[start : start + BLOCK], np.float32)
        out[start : start + BLOCK] = (part - axes.mean if centre else part) @ axes.axes
    return out


def projected(request: BaselineRequest) -> Crop:
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
