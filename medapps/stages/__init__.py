"""Verbs as stages: what commands and studies call."""

from __future__ import annotations

from medapps.stages.crop import crop_stage
from medapps.stages.find import Vectors, control_vectors, crop_vectors, no_vectors
from medapps.stages.graph import graph_stage, split_stage
from medapps.stages.grow import grow_stage
from medapps.stages.runner import Runner, Stage, run_stage
from medapps.stages.tasks import (
    TaskInputs,
    compare_stage,
    label_stage,
    rank_stage,
    recommend_stage,
    reference_stage,
)
from medapps.stages.train import Baseline, baseline_stage, train_stage

__all__ = [
    "Baseline",
    "Runner",
    "Stage",
    "TaskInputs",
    "Vectors",
    "baseline_stage",
    "compare_stage",
    "control_vectors",
    "crop_stage",
    "crop_vectors",
    "graph_stage",
    "grow_stage",
    "label_stage",
    "no_vectors",
    "rank_stage",
    "recommend_stage",
    "reference_stage",
    "run_stage",
    "split_stage",
    "train_stage",
]
