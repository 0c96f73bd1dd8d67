"""Fixtures for every room: real data when it is there, a small synthetic set always."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from medapps.graph.graph import Graph
from medapps.graph.read import read_graph
from medapps.graph.synth import synthesize

pytest_plugins = ["tests.planted"]


@pytest.fixture(scope="session")
def data() -> Callable[[str], Path]:
    """The folder of a real data set under MEDAPPS_DATA; the test is skipped without it."""

    def find(name: str) -> Path:
        root = os.environ.get("MEDAPPS_DATA")
        if not root or not (Path(root) / name).is_dir():
            pytest.skip(f"MEDAPPS_DATA has no {name}")
        return Path(root) / name

    return find


@pytest.fixture(scope="session")
def tiny_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic data set of 300 users: skg, labels, interactions, latents."""
    return synthesize(tmp_path_factory.mktemp("data") / "tiny", "tiny").folder


@pytest.fixture(scope="session")
def tiny(tiny_dataset: Path) -> Graph:
    """The graph of `tiny_dataset`."""
    return read_graph(tiny_dataset)
