"""The three models that are served, each opened from its folders: user ids in, a table out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import polars as pl

from medapps.crop.crop import Crop, load_crop
from medapps.graph.ids import IdMap
from medapps.label.model import LabelModel

if TYPE_CHECKING:
    from medapps.recommend.ncf_paper.model import NcfRecommender
    from medapps.recommend.recommender import Recommender

CROP, LABELLER, RECOMMENDER = "crop", "labeller", "recommender"


class Served(Protocol):
    """What answers for users."""

    @property
    def users(self) -> IdMap:
        """Whom it knows."""
        ...

    @property
    def examples(self) -> pl.Series:
        """Users who between them need all of the model."""
        ...

    def table(self, users: pl.Series, k: int) -> pl.DataFrame:
        """The answer; k is the number of items per user where it is a list."""
        ...


@dataclass(frozen=True)
class Vectors:
    """Looks up service vectors; zeros for users that the graph does not know."""

    crop: Crop

    @property
    def users(self) -> IdMap:
        return self.crop.entity_ids

    @property
    def examples(self) -> pl.Series:
        return self.users.names(np.arange(1))

    def table(self, users: pl.Series, k: int) -> pl.DataFrame:
        vectors, known = self.crop.vectors(users)
        return pl.DataFrame({"user": users, "in_graph": known, "vector": vectors.tolist()})


@dataclass(frozen=True)
class Labels:
    """Reads the class of users from their vectors."""

    model: LabelModel
    crop: Crop

    @property
    def users(self) -> IdMap:
        return self.crop.entity_ids

    @property
    def examples(self) -> pl.Series:
        return self.users.names(np.arange(1))

    def table(self, users: pl.Series, k: int) -> pl.DataFrame:
        return self.model.predict(self.crop, users)


@dataclass(frozen=True)
class Lists:
    """Recommends k items per user, or all when there are fewer."""

    model: Recommender | NcfRecommender

    @property
    def users(self) -> IdMap:
        return self.model.users

    @property
    def examples(self) -> pl.Series:
        """With the fewest and with the most purchases."""
        purchases = getattr(self.model, "purchases", None)
        count = np.zeros(1) if purchases is None else np.diff(purchases.indptr)
        return self.users.names(np.unique([count.argmin(), count.argmax()]))

    def table(self, users: pl.Series, k: int) -> pl.DataFrame:
        return self.model.recommend(users, min(k, len(self.model.items)))


def load_model(folders: Mapping[str, Path]) -> Served:
    """The model in the folders of a crop, a labeller with its crop, or a recommender."""
    if RECOMMENDER in folders:
        from medapps.recommend.recommender import load_recommender

        return Lists(load_recommender(folders[RECOMMENDER]))
    crop = load_crop(folders[CROP])
    return (
        Labels(LabelModel.load(folders[LABELLER]), crop) if LABELLER in folders else Vectors(crop)
    )
