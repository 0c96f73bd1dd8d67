"""Settings of user labelling; needs no torch to be read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from medapps.config import Config, Count, Dim, Dropout, Positive, Seed, Size, Weight


class LabelConfig(Config):
    """User labelling: a two-layer MLP on frozen, standardised user vectors."""

    column: str | None = None
    """Label column; the first one when not given."""
    hidden: Dim = 64
    """Width of the hidden layer."""
    dropout: Annotated[tuple[Dropout, ...], Field(min_length=1)] = (0.2, 0.5)
    """Dropout of the hidden layer; one of these is chosen on validation users."""
    weight_decay: Annotated[tuple[Weight, ...], Field(min_length=1)] = (0.01, 1.0, 10.0)
    """Decoupled weight decay; one of these is chosen on validation users."""
    learning_rate: Positive = 2e-3
    """Step size of Adam."""
    batch: Size = 256
    """Users per step."""
    epochs: Count = 60
    """Most epochs that are trained."""
    patience: Count = 10
    """Epochs without a better validation macro-F1 before a model stops."""
    scaling: Literal["column", "whole"] = "whole"
    """Divide all coordinates by their common deviation on train users, or each by its own."""
    rare: Literal["error", "drop"] = "error"
    """What to do with a class of fewer than three users."""
    split_seed: Seed = 0
    """Chooses the 70/10/20 split of users; the same for every method."""
    controls: bool = True
    """Also train on random and on shuffled vectors, and fit a linear probe."""
