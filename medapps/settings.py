"""Settings: the sections that a config file may have, one per room."""

from __future__ import annotations

from pydantic import Field

from medapps.config import Config
from medapps.embed.config import MedConfig
from medapps.graph.config import GraphConfig


class Settings(Config):
    """Everything that can be configured; each section lives with the code that uses it."""

    graph: GraphConfig = Field(default_factory=GraphConfig)
    """Reading and completing a graph."""
    train: MedConfig = Field(default_factory=MedConfig)
    """Training a croppable embedding."""
