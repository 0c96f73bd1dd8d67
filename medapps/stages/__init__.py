"""Verbs as stages: what commands and studies call."""

from __future__ import annotations

from medapps.stages.baseline import baseline_stage
from medapps.stages.bench import Bench, Stage, carry_out
from medapps.stages.compare import compare_stage
from medapps.stages.crop import crop_stage
from medapps.stages.graph import graph_stage, log_graph
from medapps.stages.rank import rank_stage
from medapps.stages.tasks import label_stage, recommend_stage, reference_stage
from medapps.stages.train import train_stage
from medapps.stages.vectors import Vectors, control_vectors, crop_vectors, find_vectors

__all__ = [
    "Bench",
    "Stage",
    "Vectors",
    "baseline_stage",
    "carry_out",
    "compare_stage",
    "control_vectors",
    "crop_stage",
    "crop_vectors",
    "find_vectors",
    "graph_stage",
    "label_stage",
    "log_graph",
    "rank_stage",
    "recommend_stage",
    "reference_stage",
    "train_stage",
]
