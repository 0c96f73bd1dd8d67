"""A recommender in MLflow: logged with a signature, loaded and asked by name."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from medapps.crop.service import NamedVectors
from medapps.graph.split import split_purchases
from medapps.recommend.config import NcfConfig, RecommendConfig
from medapps.recommend.ncf_paper.problem import prepare
from medapps.recommend.ncf_paper.run import train_ncf_paper
from medapps.recommend.run import train_recommender
from medapps.serve.register import log_recommender
from medapps.tracking import NO_RUN, track, tracking_uri

pytestmark = pytest.mark.filterwarnings("default")  # those of mlflow and what it imports


@pytest.mark.parametrize("kind", ["ncf", "ncf-paper"])
def test_a_logged_recommender_answers_by_name(
    kind: str,
    planted: NamedVectors,
    interactions: pl.DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import mlflow
    import pandas as pd

    split = split_purchases(interactions)
    config = RecommendConfig(ncf=NcfConfig(epochs=1))
    if kind == "ncf":
        recommender = train_recommender(planted, split, config).model
    else:
        recommender = train_ncf_paper(planted, prepare(split, config), config, seeds=(0,)).model
    recommender.save(tmp_path / "model")
    assert log_recommender(NO_RUN, tmp_path / "model") is None
    with track(tmp_path, experiment="planted", name="recommend") as run:
        address = log_recommender(run, tmp_path / "model")
    assert address is not None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(tmp_path))
    model = mlflow.pyfunc.load_model(address)
    users = ["user:001", "stranger"]
    answer = model.predict(pd.DataFrame({"user": users}))
    expected = recommender.recommend(pl.Series("user", users), 10)
    assert answer["item"].tolist() == expected["item"].to_list()
    assert model.metadata.signature.inputs.input_names() == ["user"]
    assert model.metadata.signature.outputs.input_names() == expected.columns
    three = model.predict(pd.DataFrame({"user": users}), params={"k": 3})
    assert (
        three["item"].tolist()
        == recommender.recommend(expected["user"].unique(maintain_order=True), 3)["item"].to_list()
    )
