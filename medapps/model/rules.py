"""The scorers by name. A new one is a file beside this one and a line here."""

from __future__ import annotations

from importlib import import_module

from medapps.model.complex import ComplEx
from medapps.model.distmult import DistMult
from medapps.model.pairre import PairRE
from medapps.model.rotate import RotatE
from medapps.model.rule import Rule, Scorer
from medapps.model.simple import SimplE
from medapps.model.transe import TransE

RULES: dict[str, Rule] = {
    "transe": TransE(),
    "rotate": RotatE(),
    "pairre": PairRE(),
    "simple": SimplE(),
    "distmult": DistMult(),
    "complex": ComplEx(),
}


def make_scorer(name: str, norm: str | None = None, *, from_larger: float = 1.0) -> Scorer:
    """The scorer of that name, with its usual norm if none is given."""
    return scorer_of(RULES[name], norm, from_larger=from_larger)


def scorer_of(rule: Rule, norm: str | None = None, *, from_larger: float = 1.0) -> Scorer:
    """The kernel of a rule's norm; its module is loaded when it is needed."""
    norm = norm or next(iter(rule.NORMS))
    module, _, kind = rule.NORMS[norm].kernel.partition(".")
    kernel: type[Scorer] = getattr(import_module(f"medapps.model.kernels.{module}"), kind)
    return kernel(rule, norm, from_larger)
