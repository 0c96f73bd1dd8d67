"""What medapps saved as an MLflow model: a table in, a table out.

Run by MLflow only, which has the code of medapps beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
from mlflow.pyfunc import PythonModel, PythonModelContext
from mlflow.utils.file_utils import local_file_uri_to_path

Answer = Callable[[pd.DataFrame, int], dict[str, list[Any]]]


def of_users(folders: Mapping[str, Path]) -> Answer:
    """Service vectors, labels or lists of the ids in the column user."""
    from medapps.crop.idlist import typed
    from medapps.serve.models import load_model

    model = load_model(folders)

    def answer(table: pd.DataFrame, k: int) -> dict[str, list[Any]]:
        users = typed(pl.Series("user", table["user"].tolist()), model.users.dtype)
        return model.table(users, k).to_dict(as_series=False)

    return answer


def of_sentences(folder: Path) -> Answer:
    """Label (or value, of a regression) and logits of sentences or pairs of them."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    labels = model.config.id2label

    def answer(table: pd.DataFrame, k: int) -> dict[str, list[Any]]:
        texts = [table[column].tolist() for column in table.columns]
        batch = tokenizer(
            *texts, padding=True, truncation=True, max_length=128, return_tensors="pt"
        )
        with torch.no_grad():
            logits = model(**batch).logits
        best = [labels[i] for i in logits.argmax(1).tolist()]
        shown = {"value": logits[:, 0].tolist()} if len(labels) == 1 else {"label": best}
        return shown | {"logits": logits.tolist()}

    return answer


class SavedModel(PythonModel):
    """Answers from the folders that were logged with it, by what they hold."""

    def load_context(self, context: PythonModelContext) -> None:
        """Open the folders."""
        places = context.artifacts.items()
        folders = {kind: Path(local_file_uri_to_path(address)) for kind, address in places}
        text = folders.get("text")
        self.answer = of_users(folders) if text is None else of_sentences(text)

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: Any = None
    ) -> pd.DataFrame:
        """A row for each row of the input, or k (in `params`) of a recommender."""
        return pd.DataFrame(self.answer(model_input, int((params or {}).get("k", 10))))


mlflow.models.set_model(SavedModel())
