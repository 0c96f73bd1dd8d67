"""The nine baselines by name; each makes a crop."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from medapps.baselines.config import BaselineConfig
from medapps.baselines.direct import check_search, direct
from medapps.baselines.extract import ext, ext_l, ext_v, measured_on, pca
from medapps.baselines.request import BaselineRequest
from medapps.baselines.students import assistants, bkd, dualde, iterde, ta
from medapps.crop.crop import Crop
from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.tracking import NO_RUN
from medapps.train.config import MedConfig
from medapps.train.session import Session
from medapps.train.step import pick_device

MAKERS: dict[str, Callable[[BaselineRequest], Crop]] = {
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
    teacher: Crop | None = None,
    earlier: Callable[[str, int], Crop] | None = None,
    session: Session | None = None,
    **changes: Any,
) -> Crop:
    """The crop of size `dim` that a baseline makes of a graph; equal seeds give equal crops.

    `train` says what the baselines share with MED. Without a `teacher` (a crop of dt) one of
    teacher_dim is trained first; `earlier(name, dim)` may give the steps before from a cache.
    `changes` are fields of the session, such as `seed` or `checkpoint_dir`, from which a training
    that was interrupted continues.
    """
    config, train = config or BaselineConfig(), train or MedConfig()
    session = replace(session or Session(), **changes)
    check_request(name, dim, teacher.dim if teacher else teacher_dim(config, train))
    request = BaselineRequest(name, graph, dim, config, train, session, teacher, earlier)
    if name != "dt" and teacher is None:
        size, quiet = teacher_dim(config, train), replace(session, run=NO_RUN)
        teacher = direct(replace(request, name="dt", dim=size, session=quiet))
        request = replace(request, source=teacher)
    return MAKERS[name](request)


def teacher_dim(config: BaselineConfig, train: MedConfig) -> int:
    """The teacher's size."""
    return config.teacher_dim or train.dims[-1]


def check_possible(request: BaselineRequest, teacher: int) -> None:
    """Refuse what graph, settings or machine cannot give, before anything is trained."""
    pick_device(request.train.hardware.device)
    check_search(request.graph, request.train, request.config.search)
    if request.name == "ext-l":
        measured_on(request)
    if request.name == "ta":
        assistants(request, teacher)


def check_request(name: str, dim: int, teacher: int) -> None:
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
