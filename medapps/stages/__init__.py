"""Verbs as stages: what commands and studies call."""

from __future__ import annotations

from medapps.stages.baseline import baseline_stage
from medapps.stages.bench import Bench, Stage, carry_out
from medapps.stages.compare import compare_stage
from medapps.stages.graph import graph_stage, log_graph
from medapps.stages.rank import rank_stage
from medapps.stages.train import train_stage

__all__ = [
    "Bench",
    "Stage",
    "baseline_stage",
    "carry_out",
    "compare_stage",
    "graph_stage",
    "log_graph",
    "rank_stage",
    "train_stage",
]
