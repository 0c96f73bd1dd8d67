"""The size of a teacher's assistant, by the published rule."""

from __future__ import annotations

from collections.abc import Mapping

from medapps.baselines.request import Order
from medapps.baselines.single_size import alone
from medapps.errors import MedappsError
from medapps.train.loop import train_med


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


def choose_assistant(order: Order) -> tuple[int, float]:
    """The assistant's size and the seconds that finding it took.

    The MRRs are those of short direct trainings (baseline.search.epochs). Where the graph has no
    validation triples, or only one size lies between, the next doubling is taken: on the published
    tables the rule says the same in all cases but one.
    """
    teacher, given = order.teacher.dim, order.config.ta.dim
    if given is not None:
        if not order.dim < given < teacher:
            raise MedappsError(
                f"An assistant of {given} dimensions is not between the student's {order.dim} "
                f"and the teacher's {teacher}.",
                fix="Choose another --set baseline.ta.dim.",
            )
        return given, 0.0
    between = doublings(order.dim, teacher)
    if not between:
        middle = round((order.dim * teacher) ** 0.5)
        if not order.dim < middle < teacher:
            raise MedappsError(
                f"No size lies between {order.dim} and the teacher's {teacher}.",
                fix="Choose a smaller --dim or a larger --teacher-dim.",
            )
        between = [middle]
    if len(between) == 1 or not len(order.graph.valid) or order.config.search.when == "off":
        return between[0], 0.0
    short = order.config.search
    mrr, seconds = {}, 0.0
    for dim in (order.dim, *between, teacher):
        config = alone(
            order.train, dim, epochs=short.epochs, every=short.epochs, triples=short.triples
        )
        figures = train_med(order.graph, config, seed=order.seed, stop=order.watch.asked).metrics
        mrr[dim] = figures["best_valid_mrr"]
        seconds += figures["train_seconds"]
    return assistant_dim(mrr, order.dim, teacher), seconds
