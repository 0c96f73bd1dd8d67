"""The scorers by name. A new one is a file beside this one and a line here."""

from __future__ import annotations

from medapps.model.complex import ComplEx
from medapps.model.distmult import DistMult
from medapps.model.pairre import PairRE
from medapps.model.rotate import RotatE
from medapps.model.rule import Rule
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
