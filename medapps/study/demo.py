"""The study that `medapps demo` runs; the same file is configs/demo.yaml."""

from __future__ import annotations

from pathlib import Path

DEMO = Path(__file__).with_name("demo.yaml")
