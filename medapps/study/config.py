"""What a study consists of; needs no torch to be read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from medapps.config import Config, Count, Dim, Seed
from medapps.methods import METHODS

DEMO = Path(__file__).with_name("demo.yaml")
"""The study that `medapps demo` runs; the same file is configs/demo.yaml."""
if TYPE_CHECKING:
    Method = str
else:
    Method = Literal[METHODS]


class StudyTask(Config):
    """One task, at some or all sizes."""

    task: Literal["rank", "label", "recommend"]
    """What is measured."""
    dims: tuple[Dim, ...] = ()
    """Sizes; empty takes those of the study."""
    methods: tuple[Method, ...] = ()
    """Methods; empty takes those of the study."""


def _short(key: str) -> BeforeValidator:
    """Lets a list hold bare words: each stands for an item with this key alone."""

    def whole(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            return value
        return [{key: item} if isinstance(item, str) else item for item in value]

    return BeforeValidator(whole)


Tasks = Annotated[tuple[StudyTask, ...], _short("task")]


class StudyData(Config):
    """One data set."""

    name: str | None = None
    """A folder under --data (or MEDAPPS_DATA), or a path."""
    synth: Literal["tiny", "demo", "medium", "paper"] | None = None
    """Or: the preset of a synthetic data set, made in the workspace."""
    users: Count | None = None
    """Users of the synthetic data set; null takes the preset's."""
    seed: Seed = 0
    """Seed of the synthetic data set."""
    labels: tuple[str, ...] = ()
    """Label columns; empty takes the first one."""
    tasks: Tasks = ()
    """Tasks on this data set; empty takes those of the study."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Settings for this data set alone: section.key to value."""

    @model_validator(mode="after")
    def _one_origin(self) -> StudyData:
        if (self.name is None) == (self.synth is None):
            raise ValueError("give either a name or a synth preset")
        return self


class StudyConfig(Config):
    """Everything that `medapps run` does."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[\w.-]+$")] = "study"
    """How the study is called in MLflow and by `medapps compare --study`: letters, digits, dots
    and dashes.
    """
    data: Annotated[tuple[StudyData, ...], _short("name")] = ()
    """Data sets; each becomes an MLflow experiment."""
    methods: tuple[Method, ...] = ("med", "dt", "pca", "dualde")
    """Methods and controls."""
    dims: tuple[Dim, ...] = ()
    """Sizes; empty takes train.dims."""
    tasks: Tasks = (StudyTask(task="label"), StudyTask(task="recommend"))
    """What is measured."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (0,)
    """Every method is trained once with each seed."""
    repeats: Annotated[int, Field(ge=1, le=1000)] = 3
    """How often a task is trained on each set of vectors."""
    reference: Method = "med"
    """Method that the others are compared with."""
    candidates: Count | None = None
    """Link prediction ranks among so many sampled entities; null among all."""
    limit: Count | None = None
    """At most this many test triples are ranked; null ranks all."""
    registers: bool = False
    """Keep what the first training of MED yields and register it in MLflow, for `medapps serve`:
    labellers, recommenders, and crops of the tiers.
    """
    quick: dict[str, Any] = Field(default_factory=dict)
    """Settings of `--quick` that differ from its tiny budget: section.key to value."""
