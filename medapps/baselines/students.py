"""BKD, TA, DualDE and IterDE: a student from random initial values under a teacher.

Every hop has the epochs of a direct training (DualDE's second stage comes on top), its batches and
negatives, and the teacher's penalty; DualDE and IterDE, which compare raw scores, also its margin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from medapps.baselines.direct import alone, default_penalty
from medapps.baselines.distill import Phase, distill, huber_ramp_loss, kd_loss
from medapps.baselines.dualde import Labels, dual_loss
from medapps.baselines.request import BaselineRequest, Made, crop_of
from medapps.crop.crop import Crop
from medapps.errors import MedappsError
from medapps.train.config import MedConfig
from medapps.train.med import train_med
from medapps.train.tables import as_numpy


def settings_of(request: BaselineRequest, teacher: Crop, margin: str = "teacher") -> MedConfig:
    """A direct training of the student's size with the teacher's margin or its own, and with the
    teacher's penalty made smaller as the default would be.
    """
    train, dim = request.train, request.dim
    penalty = teacher.about.get("penalty", default_penalty(train, teacher.dim))
    smaller = (dim / teacher.dim) ** train.loss.scale_power
    taken = teacher.spec.margin if margin == "teacher" else None
    return alone(train, dim, margin=taken, penalty=penalty * smaller)


def bkd(request: BaselineRequest) -> Crop:
    """Hard loss plus the divergence from the teacher's distribution."""
    kd = request.config.kd
    config = settings_of(request, request.teacher, kd.margin)
    loss = kd_loss(config, kd.temperature, 1.0, kd.weight)
    return _distilled(request, request.teacher, config, [Phase(config.epochs, loss)])


def ta(request: BaselineRequest) -> Crop:
    """The same divergence twice: teacher to assistant, assistant to student."""
    dim, searching = choose_assistant(request)
    assistant = _classic(replace(request, dim=dim), request.teacher, {})
    return _classic(request, assistant, {"assistant_dim": dim, "search_seconds": searching})


def _classic(request: BaselineRequest, teacher: Crop, about: dict[str, Any]) -> Crop:
    kd = request.config.kd
    config = settings_of(request, teacher, kd.margin)
    loss = kd_loss(config, kd.temperature, 1 - kd.share, kd.share)
    return _distilled(request, teacher, config, [Phase(config.epochs, loss)], about)


def dualde(request: BaselineRequest) -> Crop:
    """First under a frozen teacher, then both together at a part of the rate."""
    config, dual = settings_of(request, request.teacher), request.config.dualde
    labels = Labels(rate=dual.soft_rate if dual.soft_labels == "learned" else 0.0)
    epochs = round(dual.second * config.epochs)
    raw = dual.scores == "raw"
    args = config.temperatures[-1], dual.structure, labels
    kept = {"labels": labels.values}
    phases = [Phase(config.epochs, dual_loss(*args, both=False, raw=raw), state=kept)]
    if epochs:
        second = dual_loss(*args, both=True, raw=raw)
        phases.append(Phase(epochs, second, dual.rate, both=True, state=kept))
    crop = _distilled(request, request.teacher, config, phases)
    names = ("student_positive", "student_negative", "teacher_positive", "teacher_negative")
    crop.about["soft_labels"] = dict(zip(names, labels.values.tolist(), strict=True))
    return crop


def iterde(request: BaselineRequest) -> Crop:
    """The last hop of a chain of halvings; the earlier ones are iterde of twice the size."""
    teacher = request.teacher
    upper = before("iterde", request.dim, teacher.dim)
    if upper is not None:
        step = replace(request, dim=upper)
        teacher = iterde(step) if request.earlier is None else request.earlier("iterde", upper)
    config, ramp = settings_of(request, teacher), request.config.iterde
    loss = huber_ramp_loss(config, ramp.weight, ramp.power)
    return _distilled(request, teacher, config, [Phase(config.epochs, loss)])


def before(name: str, dim: int, teacher: int) -> int | None:
    """The size of the same method that a baseline builds on, if there is one."""
    above = doublings(dim, teacher) if name == "iterde" else []
    return above[0] if above else None


def _distilled(
    request: BaselineRequest,
    teacher: Crop,
    config: MedConfig,
    phases: Sequence[Phase],
    about: dict[str, Any] | None = None,
) -> Crop:
    """A student as a crop; the hops of a chain keep their checkpoints apart."""
    session = request.session.inside(f"{request.name}-{request.dim}")
    learned = distill(request.graph, teacher, config, phases, session)
    student = learned.student
    facts = {
        "epochs": request.train.epochs,
        "margin": student.specs[-1].margin,
        "penalty": config.loss.penalty,
        "lr": alone(request.train, request.dim).optimiser.lr,
        "loss": learned.loss,
    }
    entities, relations = (as_numpy(table) for table in student.tables().values())
    made = Made(entities, relations, student.specs[-1], learned.seconds, teacher, facts)
    made.about.update(about or {})
    return crop_of(request, made)


def assistant_dim(mrr: Mapping[int, float], student: int, teacher: int) -> int:
    """The size whose directly trained MRR is nearest to the mean of teacher's and student's.

    `mrr` maps sizes to MRR and holds both ends; of equally near sizes the smallest is taken.
    """
    middle = (mrr[student] + mrr[teacher]) / 2
    between = sorted(dim for dim in mrr if student < dim < teacher)
    return min(between, key=lambda dim: abs(mrr[dim] - middle))


def doublings(student: int, teacher: int) -> list[int]:
    """student * 2, * 4, ... below the teacher; the last hop is at least the root of 2."""
    dims, dim = [], 2 * student
    while dim * dim * 2 <= teacher * teacher:
        dims.append(dim)
        dim *= 2
    return dims


def assistants(request: BaselineRequest, teacher: int) -> list[int]:
    """The sizes that an assistant may have, ascending: the given one, else all doublings."""
    given = request.config.ta.dim
    if given is not None:
        if not request.dim < given < teacher:
            raise MedappsError(
                f"An assistant of {given} dimensions is not between the student's {request.dim} "
                f"and the teacher's {teacher}.",
                fix="Choose another --set baseline.ta.dim.",
            )
        return [given]
    between = doublings(request.dim, teacher) or [round((request.dim * teacher) ** 0.5)]
    if not request.dim < between[0] < teacher:
        raise MedappsError(
            f"No size lies between {request.dim} and the teacher's {teacher}.",
            fix="Choose a smaller --dim or a larger --teacher-dim.",
        )
    return between


def choose_assistant(request: BaselineRequest) -> tuple[int, float]:
    """The assistant's size and the seconds that finding it took.

    The MRRs are those of short direct trainings (baseline.search.epochs). Where the graph has no
    validation triples, or only one size lies between, the next doubling is taken: on the published
    tables the rule says the same in all cases but one.
    """
    teacher = request.teacher.dim
    between = assistants(request, teacher)
    if len(between) == 1 or not len(request.graph.valid) or request.config.search.when == "off":
        return between[0], 0.0
    search = request.config.search
    mrr, seconds = {}, 0.0
    for dim in (request.dim, *between, teacher):
        config = alone(
            request.train, dim, epochs=search.epochs, every=search.epochs, triples=search.triples
        )
        figures = train_med(request.graph, config, request.session.trial()).metrics
        mrr[dim] = figures["best_valid_mrr"]
        seconds += figures["train_seconds"]
    return assistant_dim(mrr, request.dim, teacher), seconds
