"""A small shop with all three models in its registry, by string and by integer ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from medapps.crop.crop import Crop
from medapps.crop.export import export_crop
from medapps.graph.split import split_purchases
from medapps.label.config import LabelConfig
from medapps.label.model import LabelModel
from medapps.label.run import train_labeller
from medapps.recommend.recommender import Recommender
from medapps.recommend.run import train_recommender
from medapps.serve.register import log_crop, log_labeller, log_recommender
from medapps.tracking import track
from tests.recommend.worlds import ITEMS, USERS, world


@dataclass(frozen=True)
class Shop:
    """A workspace, and the models that were put into its registry."""

    root: Path
    crop: Crop
    labeller: LabelModel
    recommender: Recommender
    labelled: pl.Series

    @property
    def users(self) -> list[str | int]:
        """With purchases, without, and nobody knows the last."""
        names = self.crop.entity_ids.names(np.asarray(self.crop.users)).to_list()
        return [names[0], names[7], names[-1], 5555 if isinstance(names[0], int) else "nobody"]

    def publish(self, recommender: Recommender, name: str) -> None:
        """Register one more version of the recommender."""
        recommender.save(self.root / name)
        with track(self.root, experiment="shop", name=name) as run:
            log_recommender(run, self.root / name, register=True)


def make_shop(root: Path, integers: bool) -> Shop:
    made = world(integers=integers)
    crop = export_crop(made.crop, root / "crop")
    users = crop.entity_ids.names(np.asarray(crop.users))
    kinds = pl.Series(np.where(crop.rows(np.asarray(crop.users))[:, 0] > 0, "east", "west"))
    labels = pl.DataFrame({"user": users, "place": kinds}).head(USERS)
    config = LabelConfig(column="place", epochs=5, controls=False)
    labeller = train_labeller(crop, labels, config, seeds=(0,)).model
    labeller.save(root / "labeller")
    recommender = train_recommender(crop, split_purchases(made.bought)).model
    recommender.save(root / "recommender")
    with track(root, experiment="shop", name="models") as run:
        log_crop(run, root / "crop", tier="phone")
        log_labeller(run, root / "labeller", crop, labels["user"], register=True)
        log_recommender(run, root / "recommender", register=True)
    assert len(recommender.items) == ITEMS
    return Shop(root, crop, labeller, recommender, labels["user"])


@pytest.fixture(scope="session", params=["strings", "integers"])
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A shop of either kind of ids."""
    return make_shop(tmp_path_factory.mktemp("shop"), request.param == "integers")


@pytest.fixture(scope="session")
def strings(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A shop of its own, whose models are replaced."""
    return make_shop(tmp_path_factory.mktemp("strings"), False)
