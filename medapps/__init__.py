"""Croppable knowledge-graph embeddings for e-commerce: train once, crop to every device.

Names are imported on first use, so that `import medapps` is quick and a device without torch can
load a crop.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

# Idle OpenMP threads sleep after a short spin: on a busy machine the default costs tenfold time.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

__version__ = "0.2.0"

_HOME = {
    "Graph": "medapps.graph.graph",
    "IdMap": "medapps.graph.ids",
    "read_graph": "medapps.graph.read",
    "read_labels": "medapps.graph.user_tables",
    "read_interactions": "medapps.graph.user_tables",
    "check_dataset": "medapps.graph.check",
    "synthesize": "medapps.graph.synth",
    "Crop": "medapps.crop.crop",
    "load_crop": "medapps.crop.crop",
    "BaselineConfig": "medapps.baselines.config",
    "make_baseline": "medapps.baselines.registry",
    "MedConfig": "medapps.train.config",
    "Embedding": "medapps.crop.embedding",
    "train_med": "medapps.train.med",
    "grow": "medapps.train.grow",
    "grow_graph": "medapps.graph.grow",
    "rank_embedding": "medapps.evaluate.link_prediction",
    "rank_crop": "medapps.evaluate.link_prediction",
    "LabelConfig": "medapps.label.config",
    "label_users": "medapps.label.run",
    "RecommendConfig": "medapps.recommend.config",
    "recommend_products": "medapps.recommend.run",
    "train_recommender": "medapps.recommend.run",
    "Recommender": "medapps.recommend.recommender",
    "GraphConfig": "medapps.graph.config",
    "SplitConfig": "medapps.graph.config",
    "split_purchases": "medapps.graph.split",
    "Comparison": "medapps.comparison",
    "compare": "medapps.comparison",
    "MedappsError": "medapps.errors",
    "Report": "medapps.report",
    "Workspace": "medapps.store",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'medapps' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
