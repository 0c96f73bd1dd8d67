"""Every choice of the baselines; needs no torch to be read.

What they share with MED (epochs, batches, negatives, optimiser) is the section `train`: a baseline
differs from MED only in what is said here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from medapps.config import Config, Count, Dim, Positive, Seed, Size, Weight

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class SearchConfig(Config):
    """The search for the margin, penalty and learning rate of a directly trained model."""

    when: Literal["auto", "on", "off"] = "auto"
    """auto: where the graph has validation triples; on: else by training triples that the trials
    hold out (train.validation.fraction); off: the defaults for that size.
    """
    margins: Annotated[tuple[Positive, ...], Field(min_length=1)] = (0.7, 1.0, 1.4)
    """Margins that are tried first, as multiples of the default one."""
    penalties: tuple[Positive, ...] = (0.3, 3.0)
    """Penalties that are tried next, as multiples of the default one, where there is one."""
    rates: tuple[Positive, ...] = (0.5, 2.0)
    """Learning rates that are tried last, as multiples of the size's default one."""
    further: Annotated[int, Field(ge=0, le=100)] = 4
    """How often the grid is extended, by its last ratio, when the best value is on its edge."""
    epochs: Count = 5
    """Epochs of a trial of the largest size; smaller ones, which cost less, get as many more, up to
    those of the training.
    """
    triples: Count = 1000
    """Validation triples that a trial ranks."""
    seed: Seed = 0
    """Seed of the trials, whatever that of the training: trainings with several seeds have the same
    settings, as those of MED have, and differ by chance alone.
    """


class ExtractConfig(Config):
    """Importance of coordinates by loss (ext-l)."""

    triples: Count = 2000
    """Validation triples on which the loss is measured."""
    negatives: Size = 64
    """Negatives, one sample shared by all triples and coordinates."""


class KdConfig(Config):
    """Distillation by the distribution over a positive and its negatives (bkd, ta)."""

    temperature: Positive = 1.0
    """T: softens both distributions."""
    weight: Weight = 1.0
    """Weight of the soft part: bkd adds it to the hard loss."""
    share: Share = 0.5
    """Share of the soft part: ta takes (1 - share) hard + share soft."""
    margin: Literal["own", "teacher"] = "own"
    """Margin of the hard loss: that of the student's size, or the teacher's, which may be too large
    for a small model; the soft part does not know margins.
    """


class TaConfig(Config):
    """The teacher's assistant (ta)."""

    dim: Dim | None = None
    """Size of the assistant; null takes the published rule."""


class DualConfig(Config):
    """Two stages of teacher and student (dualde)."""

    second: Annotated[float, Field(ge=0, le=100)] = 0.3
    """Epochs of the second stage as a part of the first one's, which has as many as dt."""
    rate: Positive = 0.1
    """Learning rate of the second stage as a part of the first one's."""
    scores: Literal["raw", "sigmoid"] = "raw"
    """Scores whose distance is taken: as they are (the paper) or as probabilities (its code)."""
    structure: Weight = 1.0
    """Weight of the angle and length terms of positive triples; 0 leaves them out."""
    soft_labels: Literal["fixed", "learned"] = "learned"
    """Whether slope and offset of the soft-label weights are trained."""
    soft_rate: Positive = 1e-3
    """Learning rate of slope and offset."""


class IterConfig(Config):
    """A chain of halvings, each student the next teacher (iterde)."""

    weight: Weight = 1.0
    """k: the soft part's weight at the end."""
    power: Annotated[float, Field(ge=0, le=100)] = 2.0
    """p: the weight grows as k (epoch / epochs)^p."""


class BaselineConfig(Config):
    """How the baselines are made."""

    teacher_dim: Dim | None = None
    """Size of the directly trained teacher; null takes the largest of train.dims."""
    search: SearchConfig = Field(default_factory=SearchConfig)
    """Margin and rate of directly trained models."""
    ext: ExtractConfig = Field(default_factory=ExtractConfig)
    """Extraction by loss."""
    kd: KdConfig = Field(default_factory=KdConfig)
    """Plain distillation, also used by the assistant."""
    ta: TaConfig = Field(default_factory=TaConfig)
    """The teacher's assistant."""
    dualde: DualConfig = Field(default_factory=DualConfig)
    """DualDE."""
    iterde: IterConfig = Field(default_factory=IterConfig)
    """IterDE."""
