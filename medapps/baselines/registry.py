"""The nine baselines by name; each makes a crop."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np

from medapps.baselines import extract
from medapps.baselines.config import BaselineConfig
from medapps.baselines.direct import direct
from medapps.baselines.distill import Watch
from medapps.baselines.request import Order, crop_of
from medapps.baselines.students import bkd, dualde, iterde, ta
from medapps.crop.crop import Crop
from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.tracking import NO_RUN, Run
from medapps.train.config import MedConfig
from medapps.train.loop import Progress


def ext(order: Order) -> Crop:
    """The first coordinates of the teacher."""
    return _extracted(order, lambda: extract.first(order.dim))


def ext_l(order: Order) -> Crop:
    """The coordinates without which the validation loss would rise most."""
    return _extracted(
        order,
        lambda: extract.largest(
            extract.by_loss(
                order.teacher,
                order.graph,
                triples=order.config.ext.triples,
                negatives=order.config.ext.negatives,
                temperature=order.train.temperatures[-1],
                seed=order.seed,
            ),
            order.dim,
        ),
    )


def ext_v(order: Order) -> Crop:
    """The coordinates with the largest mean absolute value."""
    return _extracted(order, lambda: extract.largest(extract.by_value(order.teacher), order.dim))


def _extracted(order: Order, pick: Callable[[], np.ndarray]) -> Crop:
    began, teacher = perf_counter(), order.teacher
    assert teacher.relations is not None
    kept = pick()
    tables = (
        extract.take(table, kept, teacher.dim) for table in (teacher.entities, teacher.relations)
    )
    entities, relations = tables
    about = {"coordinates": [int(k) for k in kept]}
    seconds = perf_counter() - began
    return crop_of(order, entities, relations, teacher.spec, seconds, teacher, about)


def pca(order: Order) -> Crop:
    """The teacher's entities on their principal axes."""
    from medapps.baselines.pca import principal_axes, project

    began, teacher = perf_counter(), order.teacher
    assert teacher.relations is not None
    axes = principal_axes(teacher.entities, order.dim)
    entities = project(teacher.entities, axes, centre=True)
    euclidean = teacher.spec.scorer == "transe"
    relations = project(teacher.relations, axes, centre=False) if euclidean else None
    about = {"explained_variance": axes.explained}
    seconds = perf_counter() - began
    return crop_of(order, entities, relations, teacher.spec, seconds, teacher, about)


MAKERS: dict[str, Callable[[Order], Crop]] = {
    "dt": direct,
    "ext": ext,
    "ext-l": ext_l,
    "ext-v": ext_v,
    "pca": pca,
    "bkd": bkd,
    "ta": ta,
    "dualde": dualde,
    "iterde": iterde,
}


def make_baseline(
    name: str,
    graph: Graph,
    dim: int,
    config: BaselineConfig | None = None,
    *,
    train: MedConfig | None = None,
    seed: int = 0,
    run: Run = NO_RUN,
    teacher: Crop | None = None,
    earlier: Callable[[str, int], Crop] | None = None,
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], int] | None = None,
    checkpoint_dir: Path | None = None,
    searches: Path | None = None,
) -> Crop:
    """The crop of size `dim` that a baseline makes of a graph; equal seeds give equal crops.

    `train` says what the baselines share with MED. Without a `teacher` (a crop of dt) one of
    teacher_dim is trained first; `earlier(name, dim)` may give the steps before from a cache. With
    `checkpoint_dir` a training that was cut off goes on from the state that it left there; trials
    of settings in the folder `searches` are not made again.
    """
    config, train = config or BaselineConfig(), train or MedConfig()
    check_order(name, dim, teacher.dim if teacher else teacher_dim(config, train))
    watch = Watch(run, progress, stop, checkpoint_dir, searches)
    order = Order(name, graph, dim, config, train, seed, watch, teacher, earlier)
    if name != "dt" and teacher is None:
        size = teacher_dim(config, train)
        teacher = direct(replace(order, name="dt", dim=size, watch=replace(watch, run=NO_RUN)))
        order = replace(order, source=teacher)
    return MAKERS[name](order)


def teacher_dim(config: BaselineConfig, train: MedConfig) -> int:
    """The teacher's size."""
    return config.teacher_dim or train.dims[-1]


def check_order(name: str, dim: int, teacher: int) -> None:
    """Refuse a method that does not exist and a size that the teacher cannot give."""
    if name not in MAKERS:
        near = difflib.get_close_matches(name, MAKERS, 1, 0.0)[0]
        raise MedappsError(
            f"There is no baseline {name!r}; did you mean {near!r}?",
            fix=f"Choose one of {', '.join(MAKERS)}.",
        )
    if dim < 1:
        raise MedappsError(f"A size must be at least 1, not {dim}.")
    if name != "dt" and dim >= teacher:
        raise MedappsError(
            f"{name} makes a smaller model of a teacher, and {dim} dimensions are not fewer than "
            f"the teacher's {teacher}.",
            fix="Choose a smaller --dim or a larger --teacher-dim.",
        )
