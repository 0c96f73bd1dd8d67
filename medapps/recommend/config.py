"""Settings of the recommender; needs no torch to be read."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from medapps.config import Config, Count, Dim, Dropout, Positive, Size, Weight

PartName = Literal[
    "collaborative", "gmf", "neighbours", "spectral", "graph", "service", "popularity"
]


class NcfConfig(Config):
    """Sizes and training of the recommender; the sizes are the defaults of the NCF code."""

    mode: Literal["neumf", "gmf", "mlp"] = "neumf"
    """Both towers, the GMF tower only, or the MLP tower only."""
    factors: Dim = 8
    """Length of the GMF vectors."""
    embed: Dim = 32
    """Length of the user and the item vector of the MLP tower."""
    layers: Annotated[tuple[Dim, ...], Field(min_length=1)] = (32, 16, 8)
    """Widths of the MLP tower."""
    service_gain: Positive = 3.0
    """Length of a typical service vector after standardising, whatever its dimension."""
    user_dropout: Dropout = 0.2
    """Share of training examples whose user is replaced by the one unknown user."""
    user_decay: Weight = 10.0
    """Decoupled weight decay of the user vectors."""
    item_decay: Weight = 0.5
    """Decoupled weight decay of the item vectors."""
    negatives: int = Field(default=4, ge=1, le=10_000)
    """Fresh negative items per positive and epoch."""
    batch: Size = 1024
    """Positives per step, with their negatives; smaller data takes at least 100 steps per epoch."""
    learning_rate: Positive = 0.004
    """Step size of Adam."""
    average: float = Field(default=0.999, ge=0, lt=1)
    """Memory per step of the running mean of weights that is validated and kept; 0 is off."""
    epochs: int = Field(default=30, ge=0, le=2**31 - 1)
    """Most epochs that are trained."""
    patience: Count = 10
    """Validations without a better value before training stops."""


class RecommendConfig(Config):
    """Recommendation: which model, what is measured, and what stands beside it."""

    model: Literal["ncf", "graph", "ncf-paper"] = "ncf"
    """ncf: the parts below, weighed on validation purchases; graph: the embedding's own score of
    (user, takes, item), no training; ncf-paper: the network of the NCF paper.
    """
    parts: tuple[PartName, ...] = get_args(PartName)
    """Parts of ncf: factorisation over all pairs, the same with service vectors injected, EASE or
    ItemKNN with 50 neighbours per item, a spectral filter of the purchases, the graph's score, a
    map of the service vector, popularity.
    """
    references: tuple[Literal["popularity", "itemknn", "ease", "als", "bpr"], ...] = ("popularity",)
    """Recommenders without a graph, tuned and measured on the same purchases."""
    sampled_negatives: Size = 99
    """Distinct verified negatives per test item when sampled; fewer when items are few."""
    list_length: Size = 10
    """Length of the lists from which catalogue coverage is counted."""
    few: tuple[Count, ...] = (5, 10)
    """Users with at most so many training interactions are reported in rows of their own."""
    ncf: NcfConfig = Field(default_factory=NcfConfig)
    """The network of ncf-paper and its training."""
    test_users: Count | None = None
    """ncf-paper ranks at most so many test users, drawn at random; null ranks all."""
    valid_users: Size = 2000
    """ncf-paper: users whose validation item is ranked after each epoch."""
    valid_protocol: Literal["full", "sampled"] = "full"
    """ncf-paper: ranking that early stopping looks at."""
    user_decays: tuple[Weight, ...] = (0.5, 10.0)
    """ncf-paper: values of ncf.user_decay; chosen on validation items. Empty keeps it."""
    refit: bool = False
    """ncf-paper: train again on all known items for the epochs that validation chose."""
