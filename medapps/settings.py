"""Settings: the sections that a config file may have, one per room."""

from __future__ import annotations

from pydantic import Field

from medapps.baselines.config import BaselineConfig
from medapps.config import Config
from medapps.crop.tiers import CropConfig
from medapps.graph.config import (
    GraphConfig,
    InteractionsConfig,
    LabelsConfig,
    SplitConfig,
    TableConfig,
)
from medapps.label.config import LabelConfig
from medapps.recommend.config import RecommendConfig
from medapps.study.config import StudyConfig
from medapps.train.config import MedConfig


class Settings(Config):
    """Everything that can be configured; each section lives with the code that uses it."""

    graph: GraphConfig = Field(default_factory=GraphConfig)
    """Reading and completing a graph."""
    interactions: InteractionsConfig = Field(default_factory=InteractionsConfig)
    """Columns and dates of the interactions."""
    labels: LabelsConfig = Field(default_factory=LabelsConfig)
    """Columns of the labels."""
    split: SplitConfig = Field(default_factory=SplitConfig)
    """Which purchases train, validate and test."""
    train: MedConfig = Field(default_factory=MedConfig)
    """Training a croppable embedding."""
    crop: CropConfig = Field(default_factory=CropConfig)
    """Sizes of devices and how a crop is written."""
    label: LabelConfig = Field(default_factory=LabelConfig)
    """Labelling users."""
    recommend: RecommendConfig = Field(default_factory=RecommendConfig)
    """Recommending products."""
    baseline: BaselineConfig = Field(default_factory=BaselineConfig)
    """Making the baselines."""
    study: StudyConfig = Field(default_factory=StudyConfig)
    """What `medapps run` does."""

    @property
    def tables(self) -> TableConfig:
        """How the tables by user are read."""
        return TableConfig(interactions=self.interactions, labels=self.labels)
