"""BKD, TA, DualDE and IterDE: a student from random start values under a teacher.

Every hop has the epochs of a direct training (DualDE's second stage comes on top), its batches and
negatives, and the teacher's penalty; DualDE and IterDE, which compare raw scores, also its margin.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from medapps.baselines.assistant import choose_assistant, doublings
from medapps.baselines.distill import Learned, Phase, distill
from medapps.baselines.dualde import Labels, dual_loss
from medapps.baselines.losses import huber_ramp_loss, kd_loss
from medapps.baselines.request import Order, crop_of
from medapps.baselines.single_size import alone, default_penalty
from medapps.crop.crop import Crop
from medapps.train.config import MedConfig


def settings_of(order: Order, teacher: Crop, margin: str = "teacher") -> MedConfig:
    """A direct training of the student's size with the teacher's margin or its own, and with the
    teacher's penalty made smaller as the default would be.
    """
    train, dim = order.train, order.dim
    penalty = teacher.about.get("penalty", default_penalty(train, teacher.dim))
    smaller = (dim / teacher.dim) ** train.loss.scale_power
    taken = teacher.spec.margin if margin == "teacher" else None
    return alone(train, dim, margin=taken, penalty=penalty * smaller)


def bkd(order: Order) -> Crop:
    """Hard loss plus the divergence from the teacher's distribution."""
    kd = order.config.kd
    config = settings_of(order, order.teacher, kd.margin)
    loss = kd_loss(config, kd.temperature, 1.0, kd.weight)
    learned = _distill(order, order.teacher, config, Phase(config.epochs, loss))
    return _crop(order, learned, order.teacher)


def ta(order: Order) -> Crop:
    """The same divergence twice: teacher to assistant, assistant to student."""
    dim, searching = choose_assistant(order)
    assistant = _classic(replace(order, dim=dim), order.teacher, {})
    return _classic(order, assistant, {"assistant_dim": dim, "search_seconds": searching})


def _classic(order: Order, teacher: Crop, about: dict[str, Any]) -> Crop:
    kd = order.config.kd
    config = settings_of(order, teacher, kd.margin)
    loss = kd_loss(config, kd.temperature, 1 - kd.share, kd.share)
    return _crop(
        order, _distill(order, teacher, config, Phase(config.epochs, loss)), teacher, about
    )


def dualde(order: Order) -> Crop:
    """First under a frozen teacher, then both together at a part of the rate."""
    config, dual = settings_of(order, order.teacher), order.config.dualde
    labels = Labels(rate=dual.soft_rate if dual.soft_labels == "learned" else 0.0)
    epochs = round(dual.second * config.epochs)
    raw = dual.scores == "raw"
    args = config.temperatures[-1], dual.structure, labels
    kept = {"labels": labels.values}
    phases = [Phase(config.epochs, dual_loss(*args, both=False, raw=raw), state=kept)]
    if epochs:
        second = dual_loss(*args, both=True, raw=raw)
        phases.append(Phase(epochs, second, dual.rate, both=True, state=kept))
    learned = _distill(order, order.teacher, config, *phases)
    names = ("student_positive", "student_negative", "teacher_positive", "teacher_negative")
    soft = dict(zip(names, labels.values.tolist(), strict=True))
    return _crop(order, learned, order.teacher, {"soft_labels": soft})


def iterde(order: Order) -> Crop:
    """The last hop of a chain of halvings; the earlier ones are iterde of twice the size."""
    teacher = order.teacher
    upper = before("iterde", order.dim, teacher.dim)
    if upper is not None:
        step = replace(order, dim=upper)
        teacher = iterde(step) if order.earlier is None else order.earlier("iterde", upper)
    config, ramp = settings_of(order, teacher), order.config.iterde
    loss = huber_ramp_loss(config, ramp.weight, ramp.power)
    return _crop(order, _distill(order, teacher, config, Phase(config.epochs, loss)), teacher)


def before(name: str, dim: int, teacher: int) -> int | None:
    """The size of the same method that a baseline builds on, if there is one."""
    above = doublings(dim, teacher) if name == "iterde" else []
    return above[0] if above else None


def _distill(order: Order, teacher: Crop, config: MedConfig, *phases: Phase) -> Learned:
    watch = order.watch
    if watch.folder is not None:  # the hops of a chain keep their states apart
        watch = replace(watch, folder=watch.folder / f"{order.name}-{order.dim}")
    return distill(order.graph, teacher, config, phases, seed=order.seed, watch=watch)


def _crop(
    order: Order, learned: Learned, teacher: Crop, about: dict[str, Any] | None = None
) -> Crop:
    facts = {
        "epochs": order.train.epochs,
        "margin": learned.student.spec.margin,
        "penalty": learned.student.penalty,
        "lr": alone(order.train, order.dim).optimiser.lr,
        "loss": learned.loss,
    }
    return crop_of(
        order,
        learned.entities,
        learned.relations,
        learned.student.spec,
        learned.seconds,
        teacher,
        facts | (about or {}),
    )
