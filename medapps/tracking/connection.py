"""The way to the store of runs: its address, how long it is waited for, what is wrong with it, and
which models its registry has.

It is SQLite inside the workspace unless MLFLOW_TRACKING_URI names another one.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from medapps.errors import MedappsError, masked
from medapps.store import disk_errors, lock
from medapps.tracking.sqlite import (
    DamagedStore,
    abandoned,
    artifact_root,
    check_places,
    is_made,
    mend,
    move_aside,
    sqlite_uri,
    store_error,
    store_file,
)

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_TIMEOUT, _RETRIES = "MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
_AT_FIRST = {_TIMEOUT: "4", _RETRIES: "1"}
"""How long a server is waited for before work begins: 10 seconds in all."""
_AT_WORK = {_TIMEOUT: "30", _RETRIES: "2"}
answered: set[str] = set()
"""Stores that have answered this process: when they no longer do, work goes on without them."""


def to_stderr(text: str) -> None:
    """Say something on standard error."""
    print(text, file=sys.stderr)


def tracking_uri(workspace: Path) -> str:
    """Where runs are kept: MLFLOW_TRACKING_URI, or SQLite in the workspace."""
    return os.environ.get("MLFLOW_TRACKING_URI") or sqlite_uri(store_file(workspace))


def is_local(workspace: Path) -> bool:
    """Whether runs are kept in the workspace itself."""
    return tracking_uri(workspace) == sqlite_uri(store_file(workspace))


def shown_uri(uri: str) -> str:
    """An address as people may see it: without its password, a file as its path."""
    return unquote(uri) if uri.startswith("sqlite:///%2F") else masked(uri)


def connect(
    workspace: Path, experiment: str, say: Callable[[str], None]
) -> tuple[MlflowClient, str]:
    """A client on the store, and the experiment's id."""
    _quieten()
    uri = tracking_uri(workspace)
    from mlflow.tracking import MlflowClient

    with store_errors(workspace):
        workspace.mkdir(parents=True, exist_ok=True)
        check_places(workspace)
        # two first uses at once would both try to build the tables
        with lock(workspace / ".mlflow.lock", "", wait=True), _patience(_AT_FIRST):
            if is_local(workspace):
                ready_store(workspace, say)
            client = MlflowClient(uri, registry_uri=uri)
            return client, _experiment(client, workspace, experiment)


def connect_registry(workspace: Path) -> MlflowClient:
    """A client on the models of a store that is not the workspace's own."""
    import mlflow

    _quieten()
    uri = tracking_uri(workspace)
    mlflow.set_registry_uri(uri)
    with _patience(_AT_FIRST):
        return mlflow.MlflowClient(uri, registry_uri=uri)


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


def ready_store(workspace: Path, say: Callable[[str], None] = to_stderr) -> None:
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


def repair(workspace: Path, say: Callable[[str], None] = to_stderr) -> Path | None:
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
def store_errors(workspace: Path) -> Iterator[None]:
    """A store that does not answer, is broken or cannot be written, in a sentence."""
    try:
        with disk_errors(workspace):
            yield
    except MedappsError:
        raise
    except Exception as error:
        if not is_silence(error):
            raise
        if is_local(workspace):
            raise store_error(store_file(workspace), error) from error
        raise MedappsError(
            f"The MLflow store {shown_uri(tracking_uri(workspace))} does not answer: "
            f"{first_line(error)}",
            fix="Check MLFLOW_TRACKING_URI, or go on without it: --no-track.",
        ) from error


def is_silence(error: Exception) -> bool:
    """Whether the store is at fault, not what was asked of it."""
    from alembic.util import CommandError
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    if isinstance(error, MlflowException):
        return str(error.error_code) != "INVALID_PARAMETER_VALUE"
    return isinstance(error, (RequestException, SQLAlchemyError, CommandError))


def is_of_database(error: BaseException | None) -> bool:
    """Whether the database is at fault, or has lost the run; not the files beside it."""
    from sqlalchemy.exc import SQLAlchemyError

    if getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST":
        return True
    while error is not None:
        if isinstance(error, SQLAlchemyError):
            return True
        error = error.__cause__ or error.__context__
    return False


def first_line(error: BaseException) -> str:
    """What went wrong, in one line without passwords."""
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


def registered(
    workspace: Path, experiment: str, name: str, alias: str, tag: str
) -> set[str] | None:
    """What `tag` says of the models that an alias leads to, or has passed on its way there.

    None when the store has answered before and no longer does.
    """
    from mlflow.exceptions import MlflowException

    try:
        client, _ = connect(workspace, experiment, lambda text: None)
    except MedappsError:
        if tracking_uri(workspace) in answered and not is_local(workspace):
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
