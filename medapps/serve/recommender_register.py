"""Recommenders in MLflow: each a logged model with a signature."""

from __future__ import annotations

from pathlib import Path

from medapps.recommend.load import load_recommender
from medapps.tracking import Run

_CODE = Path(__file__).with_name("recommender_pyfunc.py")


def log_recommender(run: Run, folder: Path) -> str | None:
    """Log a saved recommender as a model; its address, or None when nothing is tracked."""
    import pandas as pd  # type: ignore[import-untyped]

    if run.id is None:
        return None
    model = load_recommender(folder)
    example = pd.DataFrame({"user": model.users.names()[:3].to_list()})
    tags = {"dim": str(model.dim), "method": model.method}
    return run.model(_CODE, {"recommender": Path(folder)}, f"ncf-{model.dim}", example, **tags)
