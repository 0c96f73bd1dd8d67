"""A recommender as an MLflow model: user ids in, ranked items out. Run by MLflow only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
from mlflow.pyfunc import PythonModel, PythonModelContext
from mlflow.utils.file_utils import local_file_uri_to_path

from medapps.recommend.load import load_recommender


class RecommenderModel(PythonModel):
    """Recommends unseen items by name."""

    def load_context(self, context: PythonModelContext) -> None:
        """Read the recommender that was logged with the model."""
        self.recommender = load_recommender(
            Path(local_file_uri_to_path(context.artifacts["recommender"]))
        )

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: Any = None
    ) -> pd.DataFrame:
        """Columns user, item, rank, score: ten items, or all when there are fewer."""
        users = pl.Series("user", model_input["user"].tolist())
        table = self.recommender.recommend(users, min(10, len(self.recommender.items)))
        kept = ("user", "item", "rank", "score")
        return pd.DataFrame({name: table[name].to_list() for name in kept})


mlflow.models.set_model(RecommenderModel())
