"""Every choice of a MED training, in one frozen model that needs no torch to be read.

Settings are grouped by what they change. Every setting has a name of its own, so the group may be
left out: `MedConfig(lr=0.1)` and `--set train.lr=0.1` mean `optimiser.lr`.

Ablations are one line: `MedConfig(ml_down=0, ml_up=0)` is "w/o MLM",
`MedConfig(positive_weights="uniform", negative_weights="uniform")` "w/o EIM",
`MedConfig(dlw="off")` "w/o DLW"; `mrl()` has all three off.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from medapps.config import Config, Count, Dim, Positive, Size, Weight, parse_bytes
from medapps.model.rule import ScoreSpec
from medapps.model.rules import RULES

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
DEFAULT_MEMORY = "4GiB"
"""Of a table in a file."""
Power = Annotated[float, Field(ge=0, le=10)]
PartialFraction = Annotated[float, Field(ge=0.0, lt=1.0)]
PER_DIM = ("margin", "temperature", "drop", "distil")
"""Settings of the loss with one value for all dims or one per dim."""


class SamplingConfig(Config):
    """Which triples and negatives a step sees."""

    batch: Size = 1024
    """Positive triples per update."""
    chunk: Size = 512
    """Positives that share one set of negatives; chunks corrupt heads and tails in turn."""
    negatives: Size = 256
    """Negatives per chunk (shared) or per positive (independent)."""
    negative_mode: Literal["shared", "independent"] = "shared"
    """One set of negatives per chunk, or each positive its own."""
    filter_known: bool = True
    """Leave out negatives that are training triples (the true entity is always left out)."""


class LossConfig(Config):
    """The loss of every sub-model, and how sub-models teach each other."""

    margin: Weight | tuple[Weight, ...] = 4.0
    """Margin of the score, one for all dims or one per dim."""
    temperature: Weight | tuple[Positive, ...] = 2.0
    """w2: self-adversarial temperature of the negatives, one for all dims or one per dim."""
    scale_power: Power = 0.5
    """a in c_i = (d_n / d_i)^a, which multiplies the distances of sub-model i."""
    distil: Weight | tuple[Weight, ...] = 3.0
    """Weight of the distillation from the full size into each sub-model, by the distribution over
    a positive and its negatives; one for all dims or one per dim, of which the last has no effect.
    """
    ml_down: Weight = 0.0
    """Mutual learning: weight of the larger neighbour as the teacher; 0 switches it off."""
    ml_up: Weight = 0.0
    """Mutual learning: weight of the smaller neighbour as the teacher; 0 switches it off."""
    positive_weights: Literal["uniform", "recip_dist", "prob"] = "uniform"
    """Evolutionary improvement: how the next smaller sub-model's score weighs a positive."""
    positive_temperature: Weight = 1.0
    """w1: temperature of the weights of positives."""
    negative_weights: Literal["own", "smaller", "uniform"] = "own"
    """Whose scores weigh negatives: the sub-model's own, the next smaller one's, or nobody's."""
    negative_norm: Literal["per_positive", "batch"] = "per_positive"
    """Weights of negatives sum to one per positive, or over the whole chunk."""
    dlw: Literal["off", "fixed", "literal"] = "off"
    """Dynamic loss weight exp(w3 d_i/d_n): none, w3 fixed, or w3 learned."""
    w3: Annotated[float, Field(ge=-50, le=50)] = 1.0
    """Starting value of w3."""
    w3_lr: Weight = 1e-3
    """Learning rate of w3 where it is learned."""
    own_answer: Weight = 0.0
    """Weight of the penalty for ranking the query entity itself first, for asymmetric relations."""
    from_larger: Fraction = 1.0
    """Fraction of a sub-model's gradient that reaches the next smaller one; with 0 a size builds
    on the smaller one without moving it.
    """
    penalty: Weight = 0.0
    """Weight of the N3 regularisation of every positive; for bilinear scorers."""
    drop: PartialFraction | tuple[PartialFraction, ...] = 0.0
    """Dropout of coordinates per positive, one rate for all dims or one per dim for those that it
    adds; for PairRE and bilinear scorers.
    """


class OptimiserConfig(Config):
    """How gradients move the tables, and where these start."""

    name: Literal["adagrad", "lazy_adam"] = "adagrad"
    """Adagrad with one number per row and segment, or Adam on touched rows."""
    lr: Positive = 0.2
    """Initial learning rate."""
    decay: bool = True
    """Let the learning rate fall linearly to zero over the epochs."""
    rate_power: Power = 0.0
    """q in lr (d_n / d_i)^q, the learning rate of the coordinates that size i adds."""
    relation_rate: Positive = 1.0
    """Factor of the learning rate of relations."""
    keep_length: bool = False
    """Scale an entity back to its initial length after every step; for scores that do not depend on
    lengths (PairRE): else vectors grow, and steps of the same size turn them less and less.
    """
    init_norm: Positive = 1.0
    """Expected initial length of a full vector."""


class ValidationConfig(Config):
    """When validation triples are ranked, and which."""

    patience: Count | None = None
    """Stop after this many validations without a better mean MRR; null trains to the end."""
    every: Count = 5
    """Epochs between validations."""
    fraction: Fraction = 0.02
    """Fraction of the training triples held out where no validation split is given."""
    triples: Count = 2000
    """At most this many triples are ranked in a validation."""
    candidates: Count = 100_000
    """Above this many entities a validation ranks among a sample of this size."""


class HardwareConfig(Config):
    """Memory, device and threads."""

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
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Threads of the arithmetic; null takes the cores this process may use."""
    checkpoint_seconds: Annotated[float, Field(gt=0)] = 300.0
    """Time between checkpoints inside an epoch."""

    @property
    def memory_bytes(self) -> int | None:
        """The limit in bytes."""
        text = self.memory or (DEFAULT_MEMORY if self.table == "mmap" else None)
        return None if text is None else parse_bytes(text, "memory")


class MedConfig(Config):
    """How to train one croppable embedding."""

    dims: tuple[Dim, ...] = (10, 100, 500)
    """Ascending sizes; every prefix of these lengths becomes a model of its own."""
    scorer: str = "transe"
    """How head, relation and tail make a score; some settings below have other defaults then."""
    norm: str = "l2"
    """Distance of the scorer: l2 Euclidean; l1 (PairRE) and moduli (RotatE) add absolute values."""
    epochs: Count = 30
    """Epochs over the training triples."""
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    """Batches and negatives."""
    loss: LossConfig = Field(default_factory=LossConfig)
    """The loss."""
    optimiser: OptimiserConfig = Field(default_factory=OptimiserConfig)
    """Learning rates and initial values."""
    validation: ValidationConfig = Field(default_factory=ValidationConfig)
    """Validation and early stopping."""
    hardware: HardwareConfig = Field(default_factory=HardwareConfig)
    """Memory, device and threads."""

    @field_validator("dims", mode="before")
    @classmethod
    def _list_of_dims(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(int(part) for part in value.replace(",", " ").split())
        return (value,) if isinstance(value, int) else value

    @classmethod
    def arranged(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values with every setting in its group; one given without its group wins."""
        out = {key: value for key, value in values.items() if key not in LEAVES}
        if isinstance(out.get("optimiser"), str):
            out["optimiser"] = {"name": out["optimiser"]}
        for key in LEAVES.keys() & values.keys():
            group = out.setdefault(LEAVES[key], {})
            if isinstance(group, Mapping):
                out[LEAVES[key]] = {**group, key: values[key]}
        return out

    @model_validator(mode="before")
    @classmethod
    def _scorer_defaults(cls, values: Any) -> Any:
        """What is not given is as the scorer likes it."""
        if not isinstance(values, Mapping):
            return values
        name = values.get("scorer", "transe")
        rule = RULES.get(name) if isinstance(name, str) else None
        usual = {"norm": next(iter(rule.NORMS)), **rule.DEFAULTS} if rule else {}
        return cls.merged(usual, values)

    @model_validator(mode="after")
    def _agree(self) -> MedConfig:
        if self.scorer not in RULES:
            raise ValueError(f"scorer must be one of {', '.join(RULES)}, not {self.scorer!r}")
        norms = RULES[self.scorer].NORMS
        if self.norm not in norms:
            raise ValueError(f"norm of {self.scorer} must be one of {', '.join(norms)}")
        able = norms[self.norm]
        if self.loss.positive_weights == "recip_dist" and not able.is_distance:
            raise ValueError("positive_weights recip_dist needs a distance; inner products: prob")
        if any(self.drops) and not able.supports_drop:
            raise ValueError(f"drop needs {_with('supports_drop')}, not {self.scorer}")
        if self.optimiser.keep_length and not able.scale_free:
            raise ValueError(
                f"keep_length needs {_with('scale_free')}: scores of {self.scorer} know lengths"
            )
        if not self.dims or any(a >= b for a, b in zip(self.dims, self.dims[1:], strict=False)):
            raise ValueError(f"dims must be ascending without repeats, not {self.dims}")
        for name in PER_DIM:
            value = getattr(self.loss, name)
            if isinstance(value, tuple) and len(value) != len(self.dims):
                raise ValueError(
                    f"{len(value)} {name}s for {len(self.dims)} dims; give one per dim"
                )
        hardware = self.hardware
        if hardware.memory is not None:
            parse_bytes(hardware.memory, "memory")
        if hardware.table == "mmap" and hardware.device == "cuda":
            raise ValueError("table mmap is for the CPU: use device cpu")
        return self

    @property
    def margins(self) -> tuple[float, ...]:
        """One margin per dim."""
        return self._per_dim(self.loss.margin)

    @property
    def temperatures(self) -> tuple[float, ...]:
        """One w2 per dim."""
        return self._per_dim(self.loss.temperature)

    @property
    def drops(self) -> tuple[float, ...]:
        """One share per dim, of the coordinates that it adds."""
        return self._per_dim(self.loss.drop)

    @property
    def distils(self) -> tuple[float, ...]:
        """One weight of the teacher per dim."""
        return self._per_dim(self.loss.distil)

    def _per_dim(self, value: float | tuple[float, ...]) -> tuple[float, ...]:
        return value if isinstance(value, tuple) else (value,) * len(self.dims)

    @property
    def scales(self) -> tuple[float, ...]:
        """c_i per dim."""
        return tuple((self.dims[-1] / d) ** self.loss.scale_power for d in self.dims)

    @property
    def specs(self) -> tuple[ScoreSpec, ...]:
        """How each prefix scores."""
        return tuple(
            ScoreSpec(scorer=self.scorer, norm=self.norm, scale=scale, margin=margin)
            for scale, margin in zip(self.scales, self.margins, strict=True)
        )

    def changed(self, **changes: Any) -> MedConfig:
        """The same with other settings, named with or without their group."""
        return MedConfig(**self.merged(self.model_dump(), changes))

    def resized(self, dims: Iterable[int], **changes: Any) -> MedConfig:
        """The same for other dims, with `changes`; what was given per dim is taken from the same
        dim or the next larger one.
        """
        dims = tuple(dims)
        places = [min(bisect_left(self.dims, dim), len(self.dims) - 1) for dim in dims]
        own = {}
        for name in PER_DIM:
            values = self._per_dim(getattr(self.loss, name))
            picked = tuple(values[i] for i in places)
            own[name] = picked if len(set(picked)) > 1 else picked[0]
        return self.changed(**(own | {"dims": dims} | changes))


LEAVES = {
    leaf: group
    for group in MedConfig.model_fields
    if (section := MedConfig.section(group)) is not None
    for leaf in section.model_fields
}
"""The group of every setting."""


def _with(ability: str) -> str:
    """The scorers with an ability, for people."""
    able = (
        name
        for name, rule in RULES.items()
        if all(getattr(m, ability) for m in rule.NORMS.values())
    )
    return " or ".join(able)


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
    norms = RULES[changes.get("scorer", "transe")].NORMS.values()
    distances = all(measure.is_distance for measure in norms)
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
