"""Crops in MLflow: each a logged model, the tiers aliases of one registered model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from medapps.crop.crop import load_crop
from medapps.tracking import Run

DIGEST = "digest"
"""The tag that says which crop a logged model is."""
_CODE = Path(__file__).with_name("crop_pyfunc.py")


def log_crop(run: Run, folder: Path, *, model: str, tier: str | None = None) -> str | None:
    """Log a saved crop as a model; with a tier, `models:/<model>@<tier>` leads to it afterwards."""
    import pandas as pd  # type: ignore[import-untyped]

    crop = load_crop(folder)
    some = (
        np.asarray(crop.users[:3]) if len(crop.users) else np.arange(min(3, len(crop.entity_ids)))
    )
    example = pd.DataFrame({"user": crop.entity_ids.names(some).to_list()})
    tags = {"dim": str(crop.dim), "dtype": crop.dtype, "method": crop.method}
    if crop.manifest is not None:
        tags[DIGEST] = crop.manifest.digest
    if crop.about.get("untrained"):
        tags["untrained"] = "true"
    address = run.model(
        _CODE, {"crop": Path(folder)}, f"crop-{crop.dim}-{crop.dtype}", example, **tags
    )
    if address is not None and tier is not None:
        run.register(address, model, tier)
    return address
