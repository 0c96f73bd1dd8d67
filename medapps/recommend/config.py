"""Settings of the recommender; needs no torch to be read."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from medapps.config import Config


class NcfConfig(Config):
    """Sizes and training of the recommender; the sizes are the defaults of the NCF code."""

    mode: Literal["neumf", "gmf", "mlp"] = "neumf"
    """Both towers, the GMF tower only, or the MLP tower only."""
    factors: int = Field(default=8, ge=1)
    """Length of the GMF vectors."""
    embed: int = Field(default=32, ge=1)
    """Length of the user and the item vector of the MLP tower."""
    layers: tuple[int, ...] = Field(default=(32, 16, 8), min_length=1)
    """Widths of the MLP tower."""
    service_gain: float = Field(default=3.0, gt=0)
    """Length of a typical service vector after standardising, whatever its dimension."""
    adapter: int = Field(default=0, ge=0)
    """Width of a linear map in front of the service input; 0 feeds the vector itself."""
    tune_service: bool = False
    """Train the service vectors too instead of keeping them fixed."""
    user_dropout: float = Field(default=0.2, ge=0, lt=1)
    """Share of training examples whose user is replaced by the one unknown user."""
    user_decay: float = Field(default=10.0, ge=0)
    """Decoupled weight decay of the user vectors."""
    item_decay: float = Field(default=0.5, ge=0)
    """Decoupled weight decay of the item vectors."""
    service_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay of the service part of the first layer and of the adapter."""
    negatives: int = Field(default=4, ge=1)
    """Fresh negative items per positive and epoch."""
    batch: int = Field(default=1024, ge=1)
    """Positives per step, with their negatives; smaller data takes at least 100 steps per epoch."""
    learning_rate: float = Field(default=0.004, gt=0)
    """Step size of Adam."""
    average: float = Field(default=0.999, ge=0, lt=1)
    """Memory per step of the running mean of weights that is validated and kept; 0 is off."""
    epochs: int = Field(default=30, ge=0)
    """Most epochs that are trained."""
    patience: int = Field(default=10, ge=1)
    """Validations without a better value before training stops."""


class RecommendConfig(Config):
    """Recommendation: NCF with the crop as service vector, full and sampled ranking."""

    ncf: NcfConfig = Field(default_factory=NcfConfig)
    """The network and its training."""
    core: int = Field(default=0, ge=0)
    """Remove users and items with fewer training interactions; 0 keeps all."""
    own_split: bool = True
    """Use the column `split` of the interactions when they have one."""
    cold_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of users whose training interactions are withheld, to test users without any."""
    bad_ratings: Literal["error", "drop"] = "error"
    """What to do with negative or non-finite ratings."""
    sampled_negatives: int = Field(default=99, ge=1)
    """Distinct verified negatives per test item when sampled; fewer when items are few."""
    test_users: int | None = Field(default=None, ge=1)
    """Rank at most so many test users, drawn at random, where ranking all would take too long; null
    ranks all.
    """
    valid_users: int = Field(default=2000, ge=1)
    """Users whose validation item is ranked after each epoch."""
    valid_protocol: Literal["full", "sampled"] = "full"
    """Ranking that early stopping looks at."""
    user_decays: tuple[float, ...] = (0.5, 10.0)
    """Values of ncf.user_decay; each method's own is chosen on validation items. Empty keeps it."""
    refit: bool = False
    """Train again on training and validation items for the epochs that validation chose."""
    references: tuple[Literal["popularity", "als", "bpr"], ...] = ("popularity",)
    """Recommenders without a graph that are measured beside the network on the same split."""
    list_length: int = Field(default=10, ge=1)
    """Length of the lists from which catalogue coverage is counted."""
    few: tuple[int, ...] = (5, 10)
    """Users with at most so many training interactions are reported in rows of their own."""
