"""MLflow's own server on the store of a workspace, as an app of this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from medapps.tracking.connection import store_errors, tracking_uri
from medapps.tracking.sqlite import artifact_root


def ui_app(workspace: Path, hosts: str, origins: str | None) -> Any:
    """The app; `hosts` and `origins` are the names that it accepts, with commas.

    It reads its settings from the environment when it is imported, so there is one in a process.
    """
    os.environ |= {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # it would start further processes
        "MLFLOW_SERVER_ALLOWED_HOSTS": hosts,
    }
    if origins:
        os.environ["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"] = origins
    import uvicorn  # noqa: F401  (by which MLflow knows that it is a server, and checks names)
    from mlflow.server import constants

    uri, root = tracking_uri(workspace), artifact_root(workspace)
    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: uri,
        constants.REGISTRY_STORE_URI_ENV_VAR: uri,
        constants.ARTIFACT_ROOT_ENV_VAR: root,
    }
    with store_errors(workspace):
        from mlflow.server.fastapi_app import app
        from mlflow.server.handlers import initialize_backend_stores

        initialize_backend_stores(uri, uri, root)
    return app
