"""Every choice of a MED training, in one frozen model that needs no torch to be read.

Ablations are one line: `MedConfig(ml_down=0, ml_up=0)` is "w/o MLM",
`MedConfig(positive_weights="uniform", negative_weights="uniform")` "w/o EIM",
`MedConfig(dlw="off")` "w/o DLW"; `mrl()` has all three off.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from medapps.config import Config
from medapps.model.rules import RULES
from medapps.sizes import parse_bytes

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
DEFAULT_MEMORY = "4GiB"
"""Of a table in a file."""
PartialFraction = Annotated[float, Field(ge=0.0, lt=1.0)]
PER_DIM = ("margin", "temperature", "drop", "distil")
"""Settings with one value for all dims or one per dim."""


class MedConfig(Config):
    """How to train one croppable embedding."""

    dims: tuple[PositiveInt, ...] = (10, 100, 500)
    """Ascending sizes; every prefix of these lengths becomes a model of its own."""
    scorer: str = "transe"
    """How head, relation and tail make a score; some settings below have other defaults then."""
    norm: str = "l2"
    """Distance of the scorer: l2 Euclidean; l1 (PairRE) and moduli (RotatE) add absolute values."""

    epochs: PositiveInt = 30
    """Passes over the training triples."""
    batch: PositiveInt = 1024
    """Positive triples per update."""
    chunk: PositiveInt = 512
    """Positives that share one set of negatives; chunks corrupt heads and tails in turn."""
    negatives: PositiveInt = 256
    """Negatives per chunk (shared) or per positive (independent)."""
    negative_mode: Literal["shared", "independent"] = "shared"
    """One set of negatives per chunk, or each positive its own."""
    filter_known: bool = True
    """Leave out negatives that are training triples (the true entity is always left out)."""
    own_answer: NonNegativeFloat = 0.0
    """Weight of the loss that keeps a query's own entity from answering it, where the relation is
    mostly not symmetric; 0 switches it off.
    """

    lr: PositiveFloat = 0.2
    """Starting learning rate."""
    decay: bool = True
    """Let the learning rate fall linearly to zero over the epochs."""
    rate_power: NonNegativeFloat = 0.0
    """q in lr (d_n / d_i)^q, the rate of what size i adds: small sizes want longer steps."""
    relation_rate: PositiveFloat = 1.0
    """What multiplies the learning rate of relations."""
    keep_length: bool = False
    """Scale an entity back to its starting length after every step; for PairRE, whose scores do not
    know lengths: else vectors grow and are turned less and less.
    """
    optimiser: Literal["adagrad", "lazy_adam"] = "adagrad"
    """Adagrad with one number per row and segment, or Adam on touched rows."""
    init_norm: PositiveFloat = 1.0
    """Expected length of a full vector at the start."""

    margin: NonNegativeFloat | tuple[NonNegativeFloat, ...] = 4.0
    """Margin of the score, one for all dims or one per dim."""
    temperature: NonNegativeFloat | tuple[PositiveFloat, ...] = 2.0
    """w2: how sharply negatives are weighted by their score, one for all dims or one per dim."""
    scale_power: NonNegativeFloat = 0.5
    """a in c_i = (d_n / d_i)^a, which stretches the distances of small prefixes."""

    from_larger: Fraction = 1.0
    """Part of what moves a size that also moves the next smaller one inside it: 1 is the gradient
    of all losses together; with 0 a size builds on the smaller one without moving it.
    """
    penalty: NonNegativeFloat = 0.0
    """N3: weight of the cubed sizes of the numbers of every positive; for bilinear scorers."""
    drop: PartialFraction | tuple[PartialFraction, ...] = 0.0
    """Share of its coordinates that a positive does without at each step, one for all dims or one
    per dim for those that it adds; for PairRE and bilinear scorers.
    """

    ml_down: NonNegativeFloat = 0.0
    """Mutual learning, the larger neighbour teaching the smaller; 0 switches it off."""
    ml_up: NonNegativeFloat = 0.0
    """Mutual learning, the smaller neighbour teaching the larger; 0 switches it off."""
    distil: NonNegativeFloat | tuple[NonNegativeFloat, ...] = 3.0
    """How strongly the full size teaches each prefix how to rank a positive and its negatives, one
    for all dims or one per dim; the last, of the teacher itself, does nothing.
    """
    positive_weights: Literal["uniform", "recip_dist", "prob"] = "uniform"
    """Evolutionary improvement of positives: how the next smaller model's score weighs a triple."""
    positive_temperature: NonNegativeFloat = 1.0
    """w1: how sharply positives are weighted."""
    negative_weights: Literal["own", "smaller", "uniform"] = "own"
    """Whose scores weigh the negatives: the model's own, the next smaller model's, or nobody's."""
    negative_norm: Literal["per_positive", "batch"] = "per_positive"
    """Weights of negatives sum to one per positive, or over the whole chunk."""
    dlw: Literal["off", "fixed", "literal"] = "off"
    """Dynamic loss weight exp(w3 d_i/d_n): none, w3 fixed, or w3 learned."""
    w3: float = 1.0
    """Starting value of w3."""
    w3_lr: NonNegativeFloat = 1e-3
    """Learning rate of w3 where it is learned."""

    patience: PositiveInt | None = None
    """Stop after this many validations without a better mean MRR; null trains to the end."""
    every: PositiveInt = 5
    """Epochs between validations."""
    valid_fraction: Fraction = 0.02
    """Part of the training triples held out where no validation split is given."""
    valid_triples: PositiveInt = 2000
    """At most this many triples are ranked in a validation."""
    valid_candidates: PositiveInt = 100_000
    """Above this many entities a validation ranks among a sample of this size."""

    table: Literal["fp32", "bf16", "mmap"] = "fp32"
    """How entity vectors are kept: float32; bfloat16 with stochastic rounding in half the memory;
    or float32 in a file, of which two partitions at a time are in memory.
    """
    memory: str | None = None
    """Memory that the training may take, such as 4GiB, which is what null means for table mmap;
    other tables then may take what is free.
    """
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the arithmetic runs."""
    threads: PositiveInt | None = None
    """Threads of the arithmetic; null takes the cores this process may use."""
    checkpoint_seconds: PositiveFloat = 300.0
    """Time between checkpoints inside an epoch."""

    @field_validator("dims", mode="before")
    @classmethod
    def _list_of_dims(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(int(part) for part in value.replace(",", " ").split())
        return (value,) if isinstance(value, int) else value

    @model_validator(mode="before")
    @classmethod
    def _scorer_defaults(cls, values: Any) -> Any:
        """What is not given is as the scorer likes it."""
        if not isinstance(values, dict):
            return values
        name = values.get("scorer", "transe")
        rule = RULES.get(name) if isinstance(name, str) else None
        if rule is None:
            return values
        return {"norm": next(iter(rule.KERNELS))} | dict(rule.DEFAULTS) | values

    @model_validator(mode="after")
    def _agree(self) -> MedConfig:
        if self.scorer not in RULES:
            raise ValueError(f"scorer must be one of {', '.join(RULES)}, not {self.scorer!r}")
        norms = RULES[self.scorer].KERNELS
        if self.norm not in norms:
            raise ValueError(f"norm of {self.scorer} must be one of {', '.join(norms)}")
        if self.positive_weights == "recip_dist" and norms[self.norm] == "product":
            raise ValueError("positive_weights recip_dist needs a distance; inner products: prob")
        if any(self.drops) and norms[self.norm] in ("distance", "moduli"):
            raise ValueError(f"drop needs pairre or a bilinear scorer, not {self.scorer}")
        if self.keep_length and norms[self.norm] not in ("paired", "paired_sums"):
            raise ValueError(f"keep_length needs pairre: scores of {self.scorer} know lengths")
        if not self.dims or any(a >= b for a, b in zip(self.dims, self.dims[1:], strict=False)):
            raise ValueError(f"dims must be ascending without repeats, not {self.dims}")
        for name in PER_DIM:
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != len(self.dims):
                raise ValueError(
                    f"{len(value)} {name}s for {len(self.dims)} dims; give one per dim"
                )
        if self.memory is not None:
            parse_bytes(self.memory, "memory")
        if self.table == "mmap" and self.device == "cuda":
            raise ValueError("table mmap is for the CPU: use device cpu")
        return self

    @property
    def memory_bytes(self) -> int | None:
        """The limit in bytes."""
        text = self.memory or (DEFAULT_MEMORY if self.table == "mmap" else None)
        return None if text is None else parse_bytes(text, "memory")

    @property
    def margins(self) -> tuple[float, ...]:
        """One margin per dim."""
        return self._per_dim(self.margin)

    @property
    def temperatures(self) -> tuple[float, ...]:
        """One w2 per dim."""
        return self._per_dim(self.temperature)

    @property
    def drops(self) -> tuple[float, ...]:
        """One share per dim, of the coordinates that it adds."""
        return self._per_dim(self.drop)

    @property
    def distils(self) -> tuple[float, ...]:
        """One weight of the teacher per dim."""
        return self._per_dim(self.distil)

    def _per_dim(self, value: float | tuple[float, ...]) -> tuple[float, ...]:
        return value if isinstance(value, tuple) else (value,) * len(self.dims)

    @property
    def scales(self) -> tuple[float, ...]:
        """c_i per dim."""
        return tuple((self.dims[-1] / d) ** self.scale_power for d in self.dims)

    def resized(self, dims: Iterable[int], **changes: Any) -> MedConfig:
        """The same for other dims, with `changes`; what was given per dim is taken from the same
        dim or the next larger one.
        """
        dims = tuple(dims)
        places = [min(bisect_left(self.dims, dim), len(self.dims) - 1) for dim in dims]
        own = {}
        for name in PER_DIM:
            values = self._per_dim(getattr(self, name))
            picked = tuple(values[i] for i in places)
            own[name] = picked if len(set(picked)) > 1 else picked[0]
        return MedConfig(**(self.model_dump() | own | {"dims": dims} | changes))


def mrl(**changes: Any) -> MedConfig:
    """The control: a plain loss on every prefix, with mutual learning, EI and DLW off."""
    off: dict[str, Any] = {
        "ml_down": 0.0,
        "ml_up": 0.0,
        "distil": 0.0,
        "positive_weights": "uniform",
        "negative_weights": "uniform",
    }
    return MedConfig(**(off | {"dlw": "off"} | changes))


def paper(**changes: Any) -> MedConfig:
    """The literal recipe: every mechanism on, batch-normalised weights, 64 negatives each, Adam.

    Scores of both signs have no reciprocal that falls with the score: they take weights "prob".
    """
    distances = "product" not in RULES[changes.get("scorer", "transe")].KERNELS.values()
    literal: dict[str, Any] = {
        "batch": 1024,
        "chunk": 1024,
        "negatives": 64,
        "negative_mode": "independent",
        "filter_known": True,
        "optimiser": "lazy_adam",
        "lr": 1e-3,
        "scale_power": 0.0,
        "temperature": 1.0,
        "ml_down": 1.0,
        "ml_up": 1.0,
        "distil": 0.0,
        "positive_weights": "recip_dist" if distances else "prob",
        "negative_weights": "smaller",
        "negative_norm": "batch",
        "dlw": "fixed",
    }
    return MedConfig(**(literal | changes))
