"""A crop as an MLflow model: user ids in, vectors out. Run by MLflow only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
from mlflow.pyfunc import PythonModel, PythonModelContext
from mlflow.utils.file_utils import local_file_uri_to_path

from medapps.crop.crop import load_crop


class CropModel(PythonModel):
    """Looks up service vectors."""

    def load_context(self, context: PythonModelContext) -> None:
        """Map the crop that was logged with the model."""
        self.crop = load_crop(Path(local_file_uri_to_path(context.artifacts["crop"])))

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: Any = None
    ) -> pd.DataFrame:
        """Columns user, known and vector; zeros for users that the crop does not know."""
        users = model_input["user"]
        vectors, known = self.crop.vectors(pl.Series(users.tolist()))
        return pd.DataFrame({"user": users.tolist(), "known": known, "vector": vectors.tolist()})


mlflow.models.set_model(CropModel())
