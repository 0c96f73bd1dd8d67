"""A saved crop or recommender as an MLflow model: user ids in, a table out. Run by MLflow only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
from mlflow.pyfunc import PythonModel, PythonModelContext
from mlflow.utils.file_utils import local_file_uri_to_path

from medapps.crop.crop import load_crop
from medapps.crop.idlist import typed


class SavedModel(PythonModel):
    """Looks up service vectors in a crop, or recommends items with a recommender."""

    def load_context(self, context: PythonModelContext) -> None:
        """Open the folder that was logged with the model."""
        ((kind, address),) = context.artifacts.items()
        folder = Path(local_file_uri_to_path(address))
        if kind == "crop":
            self.crop = load_crop(folder)
            self.answer, self.id_type = self._vectors, self.crop.id_type
        else:
            from medapps.recommend.recommender import load_recommender

            self.recommender = load_recommender(folder)
            self.answer, self.id_type = self._recommend, self.recommender.users.dtype

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: Any = None
    ) -> pd.DataFrame:
        """A table for the ids in the column user."""
        users = typed(pl.Series("user", model_input["user"].tolist()), self.id_type)
        return pd.DataFrame(self.answer(users))

    def _vectors(self, users: pl.Series) -> dict[str, list[Any]]:
        """Zeros for users that the crop does not know."""
        vectors, known = self.crop.vectors(users)
        return {"user": users.to_list(), "known": known.tolist(), "vector": vectors.tolist()}

    def _recommend(self, users: pl.Series) -> dict[str, list[Any]]:
        """Ten items per user, or all when there are fewer."""
        table = self.recommender.recommend(users, min(10, len(self.recommender.items)))
        return {name: table[name].to_list() for name in ("user", "item", "rank", "score")}


mlflow.models.set_model(SavedModel())
