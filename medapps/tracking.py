"""Runs in MLflow; the only importer of mlflow.

Work is handed a `Run` and calls `run.metric(name, value, step)`. `NO_RUN` swallows everything, so
that no caller asks whether tracking is on. The store is SQLite inside the workspace unless
MLFLOW_TRACKING_URI names another one.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medapps import __version__
from medapps.config import flat
from medapps.errors import Interrupted, MedappsError
from medapps.store import disk_errors, lock

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure
    from mlflow.tracking import MlflowClient

_FLUSH_SECONDS = 2.0
_PARAM_LIMIT = 6000
_BATCH_LIMIT = 100
_PID, _HOST = "medapps.pid", "medapps.host"


class Run:
    """A run that keeps nothing: the interface, and what `--no-track` uses."""

    id: str | None = None

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Record one number."""

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Record several numbers of the same step."""
        for name, value in values.items():
            self.metric(name, value, step)

    @contextmanager
    def results_first(self, names: Sequence[str]) -> Iterator[None]:
        """Keep numbers back until the block ends and record `names` before the others.

        MLflow's comparison of runs begins with the metric that was recorded first.
        """
        yield

    def params(self, values: Mapping[str, Any]) -> None:
        """Record settings; nested ones get dotted names."""

    def tag(self, key: str, value: object) -> None:
        """Attach a searchable word."""

    def describe(self, markdown: str) -> None:
        """Set the description that the UI shows on the run's page."""

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Keep a copy of a file."""

    def text(self, text: str, name: str) -> None:
        """Keep a text as a file."""

    def figure(self, figure: Figure, name: str) -> None:
        """Keep a plot as PNG."""

    def dataset(self, frame: pl.DataFrame, name: str, digest: str, source: str) -> None:
        """Record that the run used a data set; `frame` may be its first rows."""

    def model(
        self, code: Path, artifacts: Mapping[str, Path], name: str, example: object, **tags: str
    ) -> str | None:
        """Log a pyfunc model whose code is a file; returns its models:/ address."""
        return None

    def register(self, address: str, name: str, alias: str) -> str | None:
        """Register a logged model under a name and move an alias to it; returns the version."""
        return None


NO_RUN = Run()


class _MlflowRun(Run):
    def __init__(self, client: MlflowClient, run_id: str, uri: str) -> None:
        self.id: str = run_id
        self._client = client
        self._uri = uri
        self._pending: list[Any] = []
        self._held = False
        self._flushed = time.monotonic()

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._pending.append(Metric(name, float(value), now, step or 0))
        if not self._held and time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.flush()

    @contextmanager
    def results_first(self, names: Sequence[str]) -> Iterator[None]:
        rank = {name: place for place, name in enumerate(names)}
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self._pending.sort(key=lambda metric: rank.get(metric.key, len(rank)))
            self.flush()

    def flush(self) -> None:
        """Send the numbers that wait."""
        for start in range(0, len(self._pending), _BATCH_LIMIT):
            batch = self._pending[start : start + _BATCH_LIMIT]
            self._client.log_batch(self.id, metrics=batch)
        self._pending.clear()
        self._flushed = time.monotonic()

    def params(self, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(k, str(v)[:_PARAM_LIMIT]) for k, v in flat(values).items()]
        for start in range(0, len(params), _BATCH_LIMIT):
            self._client.log_batch(self.id, params=params[start : start + _BATCH_LIMIT])

    def tag(self, key: str, value: object) -> None:
        self._client.set_tag(self.id, key, str(value))

    def describe(self, markdown: str) -> None:
        self.tag("mlflow.note.content", markdown)

    def artifact(self, path: Path, folder: str | None = None) -> None:
        self._client.log_artifact(self.id, str(path), folder)

    def text(self, text: str, name: str) -> None:
        self._client.log_text(self.id, text, name)

    def figure(self, figure: Figure, name: str) -> None:
        self._client.log_figure(self.id, figure, name)

    def dataset(self, frame: pl.DataFrame, name: str, digest: str, source: str) -> None:
        from mlflow.data.polars_dataset import from_polars
        from mlflow.entities import DatasetInput, InputTag

        with warnings.catch_warnings():  # a local path has two equal interpretations
            warnings.simplefilter("ignore", UserWarning)
            data = from_polars(frame, source=source, name=name, digest=digest[:36])
        tags = [InputTag("mlflow.data.context", "training")]
        entity = data._to_mlflow_entity()
        self._client.log_inputs(self.id, [DatasetInput(entity, tags)])

    def model(
        self, code: Path, artifacts: Mapping[str, Path], name: str, example: object, **tags: str
    ) -> str | None:
        import mlflow

        with self._fluent(), warnings.catch_warnings():  # hints on integers with missing values
            warnings.simplefilter("ignore", UserWarning)
            info = mlflow.pyfunc.log_model(
                name=name,
                python_model=str(code),
                artifacts={key: str(path) for key, path in artifacts.items()},
                input_example=example,
                pip_requirements=[f"medapps=={__version__}"],
                tags=tags,
            )
        return str(info.model_uri)

    def register(self, address: str, name: str, alias: str) -> str | None:
        import mlflow

        with self._fluent():
            version = mlflow.register_model(address, name).version
        self._client.set_registered_model_alias(name, alias, version)
        return str(version)

    @contextmanager
    def _fluent(self) -> Iterator[None]:
        """The parts of MLflow that only work on the active run of the process."""
        import mlflow

        # MLflow writes its address into the environment, where `tracking_uri` would find it later
        before = os.environ.get("MLFLOW_TRACKING_URI")
        mlflow.set_tracking_uri(self._uri)
        try:
            with mlflow.start_run(run_id=self.id):
                yield
        finally:
            mlflow.set_tracking_uri(before)  # type: ignore[arg-type]  # None forgets it


def tracking_uri(workspace: Path) -> str:
    """Where runs are kept: MLFLOW_TRACKING_URI, or SQLite in the workspace."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{workspace.resolve()}/mlflow.db"


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
) -> Iterator[Run]:
    """A run that ends as FINISHED, KILLED or FAILED, whatever happens inside the block.

    `reopen` names an earlier run that is gone on with, if the store still has it.
    """
    if not enabled:
        yield NO_RUN
        return
    client, experiment_id, uri = _open(workspace, experiment)
    all_tags = {
        "medapps.version": __version__,
        _PID: os.getpid(),
        _HOST: socket.gethostname(),
        **({"git.commit": commit} if (commit := _commit()) else {}),
        **({"mlflow.parentRunId": parent.id} if parent and parent.id else {}),
        **(tags or {}),
    }
    text_tags = {key: str(value) for key, value in all_tags.items()}
    again = reopen if reopen and _reopened(client, reopen, experiment_id, text_tags) else None
    made = again or client.create_run(experiment_id, run_name=name, tags=text_tags).info.run_id
    run = _MlflowRun(client, made, uri)
    status = "FAILED"
    monitor = _system_metrics(run.id, uri)
    try:
        if params and not again:
            run.params(params)
        yield run
        status = "FINISHED"
    except (KeyboardInterrupt, Interrupted, SystemExit):
        status = "KILLED"
        raise
    finally:
        monitor.finish()
        run.flush()
        client.set_terminated(run.id, status)


def registered(workspace: Path, experiment: str, name: str, alias: str, tag: str) -> set[str]:
    """What `tag` says of the models that an alias leads to, or has passed on its way there."""
    from mlflow.exceptions import MlflowException

    client, _, _ = _open(workspace, experiment)
    try:
        last = int(client.get_model_version_by_alias(name, alias).version)
    except MlflowException:
        return set()
    found = set()
    for version in client.search_model_versions(f"name = '{name}'"):
        with suppress(MlflowException):  # its logged model may be deleted
            if int(version.version) <= last:
                model = version.model_id or str(version.source).removeprefix("models:/")
                found.add(client.get_logged_model(model).tags.get(tag, ""))
    return found


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


def _system_metrics(run_id: str, uri: str) -> Any:
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    logging.getLogger("mlflow.system_metrics").setLevel(logging.ERROR)
    monitor = SystemMetricsMonitor(run_id, tracking_uri=uri)
    monitor.start()
    return monitor


def _open(workspace: Path, experiment: str) -> tuple[MlflowClient, str, str]:
    """A client on the store, the experiment's id and the store's address."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    for noisy in ("alembic", "mlflow.store.db.utils", "mlflow.tracking.fluent", "mlflow.pyfunc"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    uri = tracking_uri(workspace)
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    try:
        with disk_errors(workspace):
            workspace.mkdir(parents=True, exist_ok=True)
            # two first uses at once would both try to build the tables
            with lock(workspace / ".mlflow.lock", "", wait=True):
                client = MlflowClient(uri, registry_uri=uri)
                return client, _experiment(client, workspace, experiment, uri), uri
    except MlflowException as error:
        raise MedappsError(
            f"The MLflow store {uri} does not answer: {str(error).splitlines()[0]}",
            fix="Check MLFLOW_TRACKING_URI, or go on without it: --no-track.",
        ) from error


def _experiment(client: MlflowClient, workspace: Path, name: str, uri: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        local = uri.startswith("sqlite:")
        place = (workspace.resolve() / "mlruns").as_uri() if local else None
        return str(client.create_experiment(name, artifact_location=place))
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    _end_orphans(client, found.experiment_id)
    return str(found.experiment_id)


def _end_orphans(client: MlflowClient, experiment_id: str) -> None:
    """Mark runs whose process was killed outright, so that none stays RUNNING for ever."""
    import psutil

    for run in client.search_runs([experiment_id], "attributes.status = 'RUNNING'"):
        pid = run.data.tags.get(_PID, "")
        here = run.data.tags.get(_HOST) == socket.gethostname()
        if here and pid.isdigit() and not psutil.pid_exists(int(pid)):
            client.set_terminated(run.info.run_id, "KILLED")


def _commit() -> str | None:
    """The git commit of the working folder, if it is a checkout."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
