"""What medapps saved as an MLflow model: a table in, a table out. Run by MLflow only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
from mlflow.pyfunc import PythonModel, PythonModelContext
from mlflow.utils.file_utils import local_file_uri_to_path

Answer = Callable[[pd.DataFrame], dict[str, list[Any]]]


def vectors(folder: Path) -> Answer:
    """Service vectors of the users in a crop; zeros for those that it does not know."""
    from medapps.crop.crop import load_crop
    from medapps.crop.idlist import typed

    crop = load_crop(folder)

    def answer(table: pd.DataFrame) -> dict[str, list[Any]]:
        users = typed(pl.Series("user", table["user"].tolist()), crop.id_type)
        found, known = crop.vectors(users)
        return {"user": users.to_list(), "known": known.tolist(), "vector": found.tolist()}

    return answer


def products(folder: Path) -> Answer:
    """Ten items per user of a recommender, or all when there are fewer."""
    from medapps.crop.idlist import typed
    from medapps.recommend.recommender import load_recommender

    made = load_recommender(folder)

    def answer(table: pd.DataFrame) -> dict[str, list[Any]]:
        users = typed(pl.Series("user", table["user"].tolist()), made.users.dtype)
        lists = made.recommend(users, min(10, len(made.items)))
        return {name: lists[name].to_list() for name in ("user", "item", "rank", "score")}

    return answer


def classes(folder: Path) -> Answer:
    """Label (or value, of a regression) and logits of sentences or pairs of them."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    labels = model.config.id2label

    def answer(table: pd.DataFrame) -> dict[str, list[Any]]:
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
    """Answers from the folder that was logged with it, by what the folder holds."""

    def load_context(self, context: PythonModelContext) -> None:
        """Open the folder."""
        ((kind, address),) = context.artifacts.items()
        opened = {"crop": vectors, "recommender": products, "text": classes}[kind]
        self.answer = opened(Path(local_file_uri_to_path(address)))

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: Any = None
    ) -> pd.DataFrame:
        """A row for each row of the input, or ten of a recommender."""
        return pd.DataFrame(self.answer(model_input))


mlflow.models.set_model(SavedModel())
