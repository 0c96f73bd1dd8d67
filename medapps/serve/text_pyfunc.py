"""An exported width as an MLflow model: text in, label and logits out. Run by MLflow only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import pandas as pd  # type: ignore[import-untyped]
import torch
from mlflow.pyfunc import PythonModel, PythonModelContext
from mlflow.utils.file_utils import local_file_uri_to_path
from transformers import AutoModelForSequenceClassification, AutoTokenizer


class SentenceModel(PythonModel):
    """Classifies sentences or pairs of them."""

    def load_context(self, context: PythonModelContext) -> None:
        """Read the folder that was logged with the model."""
        folder = Path(local_file_uri_to_path(context.artifacts["model"]))
        self.model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.labels = self.model.config.id2label

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: Any = None
    ) -> pd.DataFrame:
        """Columns label (or value, of a regression) and logits."""
        texts = [model_input[column].tolist() for column in model_input.columns]
        batch = self.tokenizer(
            *texts, padding=True, truncation=True, max_length=128, return_tensors="pt"
        )
        with torch.no_grad():
            logits = self.model(**batch).logits
        best = [self.labels[i] for i in logits.argmax(1).tolist()]
        shown = {"value": logits[:, 0].tolist()} if len(self.labels) == 1 else {"label": best}
        return pd.DataFrame(shown | {"logits": logits.tolist()})


mlflow.models.set_model(SentenceModel())
