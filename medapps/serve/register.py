"""Crops and recommenders as logged models of MLflow; tiers are aliases of one registered model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from medapps.crop.crop import load_crop
from medapps.tracking import Run

DIGEST = "digest"
"""The tag that says which crop a logged model is."""
_CODE = Path(__file__).with_name("pyfunc.py")
_EXAMPLES = 3


def log_crop(run: Run, folder: Path, *, model: str, tier: str | None = None) -> str | None:
    """Log a saved crop as a model; with a tier, `models:/<model>@<tier>` leads to it afterwards."""
    crop = load_crop(folder)
    rows = np.asarray(crop.users) if len(crop.users) else np.arange(len(crop.entity_ids))
    tags = {"dim": str(crop.dim), "dtype": crop.dtype, "method": crop.method}
    if crop.manifest is not None:
        tags[DIGEST] = crop.manifest.digest
    if crop.about.get("untrained"):
        tags["untrained"] = "true"
    users = crop.entity_ids.names(rows[:_EXAMPLES])
    address = _log(run, "crop", folder, f"crop-{crop.dim}-{crop.dtype}", users, tags)
    if address is not None and tier is not None:
        run.register(address, model, tier)
    return address


def log_recommender(run: Run, folder: Path) -> str | None:
    """Log a saved recommender as a model; its address, or None when nothing is tracked."""
    from medapps.recommend.recommender import load_recommender

    if run.id is None:
        return None
    model = load_recommender(folder)
    users = model.users.names()[:_EXAMPLES]
    tags = {"dim": str(model.dim), "method": model.method}
    return _log(run, "recommender", folder, f"ncf-{model.dim}", users, tags)


def _log(
    run: Run, kind: str, folder: Path, name: str, users: pl.Series, tags: dict[str, str]
) -> str | None:
    """Log the model in `folder`, with some users from whom MLflow learns the type of ids."""
    import pandas as pd  # type: ignore[import-untyped]

    example = pd.DataFrame({"user": users.to_list()})
    return run.model(_CODE, {kind: Path(folder)}, name, example, **tags)
