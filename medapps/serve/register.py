"""Crops, labellers and recommenders as models of MLflow, registered by name and alias.

Aliases of a crop are tiers; those of a labeller and a recommender are the tier of their size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from medapps.crop.crop import Crop, load_crop
from medapps.crop.export import Export, export_files
from medapps.label.model import LabelModel
from medapps.methods import TIERS
from medapps.serve.models import CROP, LABELLER, RECOMMENDER
from medapps.store import read_manifest
from medapps.tracking import LoggedModel, Run

DIGEST = "digest"
"""The tag that says which folder a logged model is."""
NAMES = {CROP: "medapps-crop", LABELLER: "medapps-labeller", RECOMMENDER: "medapps-recommender"}
"""The names of registered models."""
_CODE = Path(__file__).with_name("pyfunc.py")
_PACKAGES = ("numpy", "pandas", "polars", "pydantic", "pyyaml", "safetensors")
_MORE = ("scipy", "numba", "torch", "threadpoolctl")
"""What a recommender imports besides."""
_EXAMPLES = 3


def alias_of(dim: int, column: str | None = None) -> str:
    """The tier of a size, or dim-7; of a labeller with its column before it."""
    size = next((name for name, trained in TIERS.items() if trained == dim), f"dim-{dim}")
    return size if column is None else f"{re.sub(r'[^a-zA-Z0-9_]+', '-', column)}-{size}"


def log_crop(
    run: Run, folder: Path, *, model: str = NAMES[CROP], tier: str | None = None
) -> str | None:
    """Log a saved crop as a model; with a tier, `models:/<model>@<tier>` leads to it afterwards."""
    crop = load_crop(folder)
    tags = {"dim": str(crop.dim), "dtype": crop.dtype, "method": crop.method}
    if crop.about.get("untrained"):
        tags["untrained"] = "true"
    tags = _digest(folder, CROP) | tags
    name = f"crop-{crop.dim}-{crop.dtype}"
    address = run.model(_model(name, {CROP: folder}, _some_users(crop), tags))
    if address is not None and tier is not None:
        text = f"Service vectors of {crop.dim} numbers ({crop.dtype}): ids of users in."
        run.register(address, model, tier, text, **tags)
    return address


def log_labeller(
    run: Run, folder: Path, source: Crop, labelled: pl.Series, *, register: bool = False
) -> str | None:
    """Log a saved labeller with the vectors of all users, so that it needs no other model.

    `labelled` are the ones with a label, which may be products as well.
    """
    if run.id is None:
        return None
    model = LabelModel.load(folder)
    tags = _digest(folder, LABELLER) | {"dim": str(model.dim), "method": model.method}
    tags |= {"label": model.column}
    with TemporaryDirectory(dir=folder.parent, prefix=".vectors-") as place:
        vectors = Path(place) / CROP
        found = source.entity_ids.ids(labelled)
        rows = np.union1d(source.users, found[found >= 0])
        kept = Export(names=source.entity_ids.names(rows), relations=False)
        export_files(source, vectors, kept)
        folders = {LABELLER: folder, CROP: vectors}
        name = f"label-{model.dim}"
        address = run.model(_model(name, folders, _some_users(source), tags))
    if address is not None and register:
        text = f"The {model.column} of users ({', '.join(model.classes)}), from {model.dim} numbers"
        alias = alias_of(model.dim, model.column)
        run.register(address, NAMES[LABELLER], alias, f"{text} each: ids of users in.", **tags)
    return address


def log_recommender(run: Run, folder: Path, *, register: bool = False) -> str | None:
    """Log a saved recommender as a model; its address, or None when nothing is tracked."""
    from medapps.recommend.recommender import load_recommender

    if run.id is None:
        return None
    model = load_recommender(folder)
    users = model.users.names()[:_EXAMPLES]
    tags = _digest(folder, RECOMMENDER) | {"dim": str(model.dim), "method": model.method}
    given = _model(f"ncf-{model.dim}", {RECOMMENDER: folder}, users, tags)
    address = run.model(given)
    if address is not None and register:
        text = f"The best of {len(model.items):,} items: ids of users in, params k."
        run.register(address, NAMES[RECOMMENDER], alias_of(model.dim), text, **tags)
    return address


def log_text(run: Run, folder: Path, columns: Sequence[str], *, model: str, alias: str) -> None:
    """Log a classifier of sentences; `models:/<model>@<alias>` leads to it afterwards."""
    example = {column: ["a good film"] for column in columns}
    packages = ("pandas", "polars", "torch", "transformers")
    address = run.model(
        LoggedModel(f"{model}-{alias}", _CODE, {"text": folder}, _frame(example), packages)
    )
    if address is not None:
        run.register(address, model, alias, "Classes of sentences: text in.")


def _digest(folder: Path, kind: str) -> dict[str, str]:
    return {DIGEST: read_manifest(folder, kind=kind, verify_below=0).digest}


def _some_users(crop: Crop) -> pl.Series:
    rows = np.asarray(crop.users) if len(crop.users) else np.arange(len(crop.entity_ids))
    return crop.entity_ids.names(rows[:_EXAMPLES])


def _model(
    name: str, folders: Mapping[str, Path], users: pl.Series, tags: Mapping[str, str]
) -> LoggedModel:
    """The model in `folders`, with some users from whom MLflow learns the type of ids."""
    table = _frame({"user": users.to_list()})
    lists = RECOMMENDER in folders
    example = (table, {"k": 10}) if lists else table
    packages = _PACKAGES + _MORE if lists else _PACKAGES
    return LoggedModel(name, _CODE, folders, example, packages, tags)


def _frame(columns: Mapping[str, Sequence[object]]) -> object:
    import pandas as pd  # type: ignore[import-untyped]

    return pd.DataFrame(columns)
