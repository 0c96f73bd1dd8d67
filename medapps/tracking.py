"""Runs in MLflow; the only importer of mlflow.

Work is handed a `Run` and calls `run.metric(name, value, step)`. `NO_RUN` swallows everything, so
that no caller asks whether tracking is on. The store is SQLite inside the workspace unless
MLFLOW_TRACKING_URI names another one. A store that stops answering does not stop the work: the
numbers that it did not take are kept in the workspace, in `offline/<run>.jsonl`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from medapps import __version__
from medapps.config import flat
from medapps.errors import Interrupted, MedappsError, masked
from medapps.runstore import (
    DamagedStore,
    abandoned,
    artifact_root,
    check_places,
    identity,
    is_made,
    mend,
    move_aside,
    sqlite_uri,
    store_error,
    store_file,
)
from medapps.store import disk_errors, lock

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure
    from mlflow.tracking import MlflowClient

_FLUSH_SECONDS = 2.0
_PARAM_LIMIT = 6000
_BATCH_LIMIT = 100
_TIMEOUT, _RETRIES = "MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
_AT_FIRST = {_TIMEOUT: "4", _RETRIES: "1"}
"""How long a server is waited for before work begins: 10 seconds in all."""
_AT_WORK = {_TIMEOUT: "30", _RETRIES: "2"}
_answered: set[str] = set()
"""Stores that have answered this process: when they no longer do, work goes on without them."""
_told: set[str] = set()
"""Stores whose silence was spoken of."""
Answer = TypeVar("Answer")


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


class Run:
    """A run that keeps nothing: the interface, and what `--no-track` uses."""

    id: str | None = None
    offline: Path | None = None
    """The file that keeps what the store did not take."""

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
    def __init__(
        self,
        client: MlflowClient | None,
        run_id: str,
        uri: str,
        workspace: Path,
        say: Callable[[str], None],
    ) -> None:
        self.id: str = run_id
        self.used = False
        """Whether it holds a number, or a run below it that does."""
        self._client: Any = client
        self._uri = uri
        self._local = is_local(workspace)
        self._file = workspace / "offline" / f"{run_id}.jsonl"
        self._say = say
        self._pending: list[Any] = []
        self._held = False
        self._flushed = time.monotonic()

    def _lost(self, error: BaseException) -> None:
        """From now on everything is kept in the workspace."""
        self.offline = self._file
        if self._uri not in _told:
            _told.add(self._uri)
            self._say(
                f"The MLflow store {shown_uri(self._uri)} no longer answers ({_first_line(error)});"
                f" the work goes on and its numbers are kept in {self._file.parent}."
            )

    def _send(self, call: Callable[[], Answer], *instead: Mapping[str, Any]) -> Answer | None:
        """Call MLflow, or keep `instead` in the workspace when it does not answer any more."""
        if self.offline is None:
            try:
                return call()
            except FileNotFoundError:  # what was to be kept, not where
                raise
            except Exception as error:
                if not _is_silence(error) or (self._local and not _is_of_database(error)):
                    with disk_errors(self._file.parent.parent):
                        raise
                self._lost(error)
        with disk_errors(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as file:
                file.writelines(json.dumps(line, default=str) + "\n" for line in instead)
        return None

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        from mlflow.entities import Metric

        self.used = True
        now = int(time.time() * 1000)
        self._pending.append(Metric(name, float(value), now, step or 0))
        if not self._held and time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._flush()

    @contextmanager
    def results_first(self, names: Sequence[str]) -> Iterator[None]:
        rank = {name: place for place, name in enumerate(names)}
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self._pending.sort(key=lambda metric: rank.get(metric.key, len(rank)))
            self._flush()

    def _flush(self) -> None:
        """Send the numbers that wait."""
        while self._pending:
            batch = self._pending[:_BATCH_LIMIT]
            self._send(
                lambda batch=batch: self._client.log_batch(self.id, metrics=batch),  # type: ignore[misc]
                *({"metric": m.key, "value": m.value, "step": m.step} for m in batch),
            )
            del self._pending[: len(batch)]
        self._flushed = time.monotonic()

    def params(self, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        plain = {key: str(value)[:_PARAM_LIMIT] for key, value in flat(values).items()}
        params = [Param(key, value) for key, value in plain.items()]

        def send() -> None:
            for start in range(0, len(params), _BATCH_LIMIT):
                self._client.log_batch(self.id, params=params[start : start + _BATCH_LIMIT])

        self._send(send, {"params": plain})

    def tag(self, key: str, value: object) -> None:
        self._send(
            lambda: self._client.set_tag(self.id, key, str(value)), {"tag": key, "value": value}
        )

    def describe(self, markdown: str) -> None:
        self.tag("mlflow.note.content", markdown)

    def artifact(self, path: Path, folder: str | None = None) -> None:
        self._send(lambda: self._client.log_artifact(self.id, str(path), folder), {"file": path})

    def text(self, text: str, name: str) -> None:
        self._send(lambda: self._client.log_text(self.id, text, name), {"text": text, "name": name})

    def figure(self, figure: Figure, name: str) -> None:
        self._send(lambda: self._client.log_figure(self.id, figure, name), {"figure": name})

    def dataset(self, frame: pl.DataFrame, name: str, digest: str, source: str) -> None:
        from mlflow.data.polars_dataset import from_polars
        from mlflow.entities import DatasetInput, InputTag

        with warnings.catch_warnings():  # a local path has two equal interpretations
            warnings.simplefilter("ignore", UserWarning)
            data = from_polars(frame, source=source, name=name, digest=digest[:36])
        tags = [InputTag("mlflow.data.context", "training")]
        entity = data._to_mlflow_entity()
        self._send(
            lambda: self._client.log_inputs(self.id, [DatasetInput(entity, tags)]),
            {"dataset": name, "digest": digest, "source": source},
        )

    def model(
        self, code: Path, artifacts: Mapping[str, Path], name: str, example: object, **tags: str
    ) -> str | None:
        import mlflow

        def send() -> str:
            with self._fluent(), warnings.catch_warnings():  # on integers with missing values
                warnings.simplefilter("ignore", UserWarning)
                info = mlflow.pyfunc.log_model(
                    name=name,
                    python_model=str(code),
                    artifacts={key: path.resolve().as_uri() for key, path in artifacts.items()},
                    input_example=example,
                    pip_requirements=[f"medapps=={__version__}"],
                    tags=tags,
                )
            return str(info.model_uri)

        return self._send(send, {"model": name, "tags": tags, "files": dict(artifacts)})

    def register(self, address: str, name: str, alias: str) -> str | None:
        import mlflow

        def send() -> str:
            with self._fluent():
                version = mlflow.register_model(address, name).version
            self._client.set_registered_model_alias(name, alias, version)
            return str(version)

        return self._send(send, {"register": address, "name": name, "alias": alias})

    def _end(self, status: str) -> None:
        """Send what waits and say how it ended."""
        self._flush()
        self._send(lambda: self._client.set_terminated(self.id, status), {"status": status})

    def _delete(self) -> None:
        """Leave no trace of a run that never began its work."""
        self._send(lambda: self._client.delete_run(self.id), {"status": "deleted"})

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
    return os.environ.get("MLFLOW_TRACKING_URI") or sqlite_uri(store_file(workspace))


def check_names(model: str, tier: str | None) -> None:
    """Refuse names under which MLflow would not register a model, before any work is done."""
    if not model.strip() or re.search(r"[/:]", model):
        raise MedappsError(
            f"MLflow takes no model named {model!r}: a name has no '/' and no ':'.",
            fix="Choose another one: --set crop.model=NAME.",
        )
    if tier is None:
        return
    if not re.fullmatch(r"[\w-]{1,255}", tier) or re.fullmatch(r"(?i)latest|v\d+", tier):
        raise MedappsError(
            f"MLflow takes no tier named {tier!r}: letters, digits, '_' and '-' make a name, and "
            "'latest' and 'v1' are its own.",
            fix="Give the tier another name in crop.tiers.",
        )


def is_local(workspace: Path) -> bool:
    """Whether runs are kept in the workspace itself."""
    return tracking_uri(workspace) == sqlite_uri(store_file(workspace))


def shown_uri(uri: str) -> str:
    """An address as people may see it: without its password, a file as its path."""
    return unquote(uri) if uri.startswith("sqlite:///%2F") else masked(uri)


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
    say: Callable[[str], None] = _to_stderr,
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
            if isinstance(parent, _MlflowRun):
                parent.used = True


def _begin(
    workspace: Path,
    experiment: str,
    name: str,
    tags: Mapping[str, str],
    reopen: str | None,
    say: Callable[[str], None],
) -> tuple[_MlflowRun, bool]:
    """A run, and whether it is an earlier one; kept in the workspace if the store fell silent."""
    uri = tracking_uri(workspace)
    try:
        client, experiment_id = _open(workspace, experiment, say)
        with _store_errors(workspace):
            again = bool(reopen) and _reopened(client, str(reopen), experiment_id, tags)
            made = reopen if again else None
            made = (
                made or client.create_run(experiment_id, run_name=name, tags=dict(tags)).info.run_id
            )
    except MedappsError as error:
        if uri not in _answered or is_local(workspace):
            raise
        run = _MlflowRun(None, uuid.uuid4().hex, uri, workspace, say)
        run._lost(error)
        run._send(lambda: None, {"experiment": experiment, "name": name, "tags": tags})
        return run, False
    _answered.add(uri)
    return _MlflowRun(client, made, uri, workspace, say), again


def registered(
    workspace: Path, experiment: str, name: str, alias: str, tag: str
) -> set[str] | None:
    """What `tag` says of the models that an alias leads to, or has passed on its way there.

    None when the store has answered before and no longer does.
    """
    from mlflow.exceptions import MlflowException

    try:
        client, _ = _open(workspace, experiment, lambda text: None)
    except MedappsError:
        if tracking_uri(workspace) in _answered and not is_local(workspace):
            return None
        raise
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

    monitor = SystemMetricsMonitor(run_id, tracking_uri=uri)
    monitor.start()
    return monitor


def _open(workspace: Path, experiment: str, say: Callable[[str], None]) -> tuple[MlflowClient, str]:
    """A client on the store, and the experiment's id."""
    _quieten()
    uri = tracking_uri(workspace)
    from mlflow.tracking import MlflowClient

    with _store_errors(workspace):
        workspace.mkdir(parents=True, exist_ok=True)
        check_places(workspace)
        # two first uses at once would both try to build the tables
        with lock(workspace / ".mlflow.lock", "", wait=True), _patience(_AT_FIRST):
            if is_local(workspace):
                ready_store(workspace, say)
            client = MlflowClient(uri, registry_uri=uri)
            return client, _experiment(client, workspace, experiment)


def _quieten() -> None:
    """MLflow says less, and waits less for a server unless the user wants it otherwise."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    for key, value in _AT_WORK.items():
        os.environ.setdefault(key, value)
    for noisy in ("alembic", "mlflow.tracking.fluent", "mlflow.pyfunc"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # what these report as errors reaches us as exceptions
    for noisy in ("mlflow.store.db.utils", "mlflow.system_metrics", "urllib3.connectionpool"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)


@contextmanager
def _patience(limits: Mapping[str, str]) -> Iterator[None]:
    """Wait for a server no longer than that, unless the user has said how long."""
    before = {key: os.environ[key] for key in limits if os.environ[key] == _AT_WORK[key]}
    os.environ.update({key: limits[key] for key in before})
    try:
        yield
    finally:
        os.environ.update(before)


def ready_store(workspace: Path, say: Callable[[str], None] = _to_stderr) -> None:
    """The workspace's own store: made whole or not at all, and mended where it was left wrong."""
    path = store_file(workspace)
    if not is_made(path):
        part = path.with_name(".mlflow.db.part")
        _remove_parts(workspace)
        try:
            _make_store(part, workspace)
            part.replace(path)
        finally:
            _remove_parts(workspace)
    moved = mend(workspace)
    if moved:
        say(moved)


def _remove_parts(workspace: Path) -> None:
    for part in workspace.glob(".mlflow.db.part*"):
        part.unlink()


def _make_store(path: Path, workspace: Path) -> None:
    """Build MLflow's tables in a file, or bring those that it has up to date."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    store = SqlAlchemyStore(sqlite_uri(path), artifact_root(workspace))
    store.engine.dispose()


def repair(workspace: Path, say: Callable[[str], None] = _to_stderr) -> Path | None:
    """Move a broken store aside and make a new one; the place of the old one, None if it is well.

    What is broken is decided by MLflow, on a copy.
    """
    path = store_file(workspace)
    _quieten()
    with disk_errors(workspace):
        if not path.exists():
            return None
        with lock(workspace / ".mlflow.lock", "", wait=True):
            if _is_well(path, workspace):
                return None
            aside = move_aside(path)
            ready_store(workspace, say)
            return aside


def _is_well(path: Path, workspace: Path) -> bool:
    try:
        if not is_made(path):
            return True
        with tempfile.TemporaryDirectory(dir=workspace, prefix=".repair-") as folder:
            copy = Path(folder) / path.name
            for file in path.parent.glob(f"{path.name}*"):
                if file.name.removeprefix(path.name) in ("", "-journal", "-wal"):
                    shutil.copyfile(file, copy.with_name(file.name))
            _make_store(copy, workspace)
    except (OSError, MedappsError) as error:
        if isinstance(error, DamagedStore):
            return False
        raise
    except Exception as error:
        meaning = store_error(path, error)
        if isinstance(meaning, DamagedStore):
            return False
        raise meaning from error
    return True


@contextmanager
def _store_errors(workspace: Path) -> Iterator[None]:
    """A store that does not answer, is broken or cannot be written, in a sentence."""
    try:
        with disk_errors(workspace):
            yield
    except MedappsError:
        raise
    except Exception as error:
        if not _is_silence(error):
            raise
        if is_local(workspace):
            raise store_error(store_file(workspace), error) from error
        raise MedappsError(
            f"The MLflow store {shown_uri(tracking_uri(workspace))} does not answer: "
            f"{_first_line(error)}",
            fix="Check MLFLOW_TRACKING_URI, or go on without it: --no-track.",
        ) from error


def _is_silence(error: Exception) -> bool:
    """Whether the store is at fault, not what was asked of it."""
    from alembic.util import CommandError
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    if isinstance(error, MlflowException):
        return str(error.error_code) != "INVALID_PARAMETER_VALUE"
    return isinstance(error, (RequestException, SQLAlchemyError, CommandError))


def _is_of_database(error: BaseException | None) -> bool:
    """Whether the database is at fault, or has lost the run; not the files beside it."""
    from sqlalchemy.exc import SQLAlchemyError

    if getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST":
        return True
    while error is not None:
        if isinstance(error, SQLAlchemyError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _first_line(error: BaseException) -> str:
    return masked((str(error).splitlines() or [type(error).__name__])[0][:200])


def _experiment(client: MlflowClient, workspace: Path, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        place = artifact_root(workspace) if is_local(workspace) else None
        return str(client.create_experiment(name, artifact_location=place))
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    if not is_local(workspace):
        _end_orphans(client, found.experiment_id)
    return str(found.experiment_id)


def _end_orphans(client: MlflowClient, experiment_id: str) -> None:
    """Mark runs whose process was killed outright, so that none stays RUNNING for ever."""
    for run in client.search_runs([experiment_id], "attributes.status = 'RUNNING'"):
        if abandoned(run.data.tags):
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
