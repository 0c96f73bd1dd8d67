"""A run from its beginning to its end, which is recorded whatever happens inside."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medapps import __version__
from medapps.errors import Interrupted, MedappsError
from medapps.tracking.connection import (
    answered,
    connect,
    is_local,
    store_errors,
    to_stderr,
    tracking_uri,
)
from medapps.tracking.run import NO_RUN, Run
from medapps.tracking.sqlite import identity

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


@contextmanager
def track(
    workspace: Path,
    *,
    experiment: str,
    name: str,
    params: Mapping[str, Any] | None = None,
    tags: Mapping[str, object] | None = None,
    parent: Run | None = None,
    reopen: str | None = None,
    enabled: bool = True,
    say: Callable[[str], None] = to_stderr,
) -> Iterator[Run]:
    """A run that ends as FINISHED, KILLED or FAILED, whatever happens inside the block.

    `reopen` names an earlier run that is gone on with, if the store still has it. A run that a
    wrong input ends before it holds a number is deleted.
    """
    if not enabled:
        yield NO_RUN
        return
    all_tags = {
        "medapps.version": __version__,
        **identity(),
        **({"git.commit": commit} if (commit := _commit()) else {}),
        **({"mlflow.parentRunId": parent.id} if parent and parent.id else {}),
        **(tags or {}),
    }
    text_tags = {key: str(value) for key, value in all_tags.items()}
    run, again = _begin(workspace, experiment, name, text_tags, reopen, say)
    status, monitor = "FAILED", None
    try:
        monitor = None if run.offline else _system_metrics(run.id, tracking_uri(workspace))
        if params and not again:
            run.params(params)
        yield run
        status = "FINISHED"
    except (KeyboardInterrupt, Interrupted, SystemExit):
        status = "KILLED"
        raise
    except MedappsError:
        if not run.used and not again:
            status = "DELETED"
        raise
    finally:
        if monitor is not None:
            monitor.finish()
        if status == "DELETED":
            run._delete()
        else:
            run._end(status)
            if parent is not None and parent.id is not None:
                parent.used = True


def _begin(
    workspace: Path,
    experiment: str,
    name: str,
    tags: Mapping[str, str],
    reopen: str | None,
    say: Callable[[str], None],
) -> tuple[Run, bool]:
    """A run, and whether it is an earlier one; kept in the workspace if the store fell silent."""
    uri = tracking_uri(workspace)
    try:
        client, experiment_id = connect(workspace, experiment, say)
        with store_errors(workspace):
            again = bool(reopen) and _reopened(client, str(reopen), experiment_id, tags)
            run_id = str(reopen)
            if not again:
                begun = client.create_run(experiment_id, run_name=name, tags=dict(tags))
                run_id = begun.info.run_id
    except MedappsError as error:
        if uri not in answered or is_local(workspace):
            raise
        run = Run(uuid.uuid4().hex, None, uri, workspace, say)
        run._lost(error)
        run._send(lambda: None, {"experiment": experiment, "name": name, "tags": tags})
        return run, False
    answered.add(uri)
    return Run(run_id, client, uri, workspace, say), again


def _reopened(
    client: MlflowClient, run_id: str, experiment_id: str, tags: Mapping[str, str]
) -> bool:
    """Set an earlier run to RUNNING again; False when it is gone."""
    from mlflow.exceptions import MlflowException

    try:
        found = client.get_run(run_id).info
    except MlflowException:
        return False
    if found.lifecycle_stage != "active" or found.experiment_id != experiment_id:
        return False
    client.update_run(run_id, status="RUNNING")
    for key, value in tags.items():
        client.set_tag(run_id, key, value)
    return True


def _system_metrics(run_id: str | None, uri: str) -> Any:
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    monitor = SystemMetricsMonitor(run_id, tracking_uri=uri)
    monitor.start()
    return monitor


def _commit() -> str | None:
    """The git commit of the working folder, if it is a checkout."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
