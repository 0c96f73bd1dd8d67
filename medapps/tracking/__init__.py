"""Runs in MLflow; the only importer of mlflow.

Work is handed a `Run` and calls `run.metric(name, value, step)`. `NO_RUN` swallows everything, so
that no caller asks whether tracking is on.
"""

from __future__ import annotations

from medapps.tracking.connection import (
    check_names,
    is_local,
    registered,
    repair,
    shown_uri,
    tracking_uri,
)
from medapps.tracking.opening import track
from medapps.tracking.run import NO_RUN, LoggedModel, Run

__all__ = [
    "NO_RUN",
    "LoggedModel",
    "Run",
    "check_names",
    "is_local",
    "registered",
    "repair",
    "shown_uri",
    "track",
    "tracking_uri",
]
