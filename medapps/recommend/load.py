"""A saved recommender of either model, read back by what its manifest says."""

from __future__ import annotations

from pathlib import Path

from medapps.recommend.ncf_paper.model import NcfRecommender
from medapps.recommend.recommender import Recommender
from medapps.store import read_manifest


def load_recommender(folder: Path) -> Recommender | NcfRecommender:
    """The recommender in a folder; that of the NCF paper answers the same questions."""
    about = read_manifest(Path(folder), kind="recommender").about
    if about.get("model") != "ncf-paper":
        return Recommender.load(folder)
    return NcfRecommender.load(folder)
