"""What medapps saved as logged models of MLflow; tiers are aliases of one registered model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

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
    example = {"user": crop.entity_ids.names(rows[:_EXAMPLES]).to_list()}
    address = _log(run, {"crop": folder}, f"crop-{crop.dim}-{crop.dtype}", example, tags)
    if address is not None and tier is not None:
        run.register(address, model, tier)
    return address


def log_recommender(run: Run, folder: Path) -> str | None:
    """Log a saved recommender as a model; its address, or None when nothing is tracked."""
    from medapps.recommend.recommender import load_recommender

    if run.id is None:
        return None
    model = load_recommender(folder)
    example = {"user": model.users.names()[:_EXAMPLES].to_list()}
    tags = {"dim": str(model.dim), "method": model.method}
    return _log(run, {"recommender": folder}, f"ncf-{model.dim}", example, tags)


def log_text(run: Run, folder: Path, columns: Sequence[str], *, model: str, alias: str) -> None:
    """Log a classifier of sentences; `models:/<model>@<alias>` leads to it afterwards."""
    example = {column: ["a good film"] for column in columns}
    address = _log(run, {"text": folder}, f"{model}-{alias}", example, {})
    if address is not None:
        run.register(address, model, alias)


def _log(
    run: Run,
    artifact: Mapping[str, Path],
    name: str,
    example: Mapping[str, Sequence[object]],
    tags: Mapping[str, str],
) -> str | None:
    """Log the model of a folder, with an example from which MLflow learns the types of columns."""
    import pandas as pd  # type: ignore[import-untyped]

    return run.model(_CODE, artifact, name, pd.DataFrame(example), **tags)
