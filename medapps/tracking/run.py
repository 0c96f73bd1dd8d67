"""What work is handed to record its numbers: a run of MLflow, or one that keeps nothing.

A store that stops answering does not stop the work: the numbers that it did not take are kept in
the workspace, in `offline/<run>.jsonl`.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from medapps.config import flat
from medapps.store import disk_errors
from medapps.tracking.connection import (
    first_line,
    is_local,
    is_of_database,
    is_silence,
    shown_uri,
)

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure
    from mlflow.tracking import MlflowClient

_FLUSH_SECONDS = 2.0
_PARAM_LIMIT = 6000
_BATCH_LIMIT = 100
_PACKAGE = Path(__file__).parents[1]
_told: set[str] = set()
"""Stores whose silence was spoken of."""
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class LoggedModel:
    """A pyfunc model: the file with its code, the folders that it opens, whom it is tried with."""

    name: str
    code: Path
    artifacts: Mapping[str, Path]
    example: object
    """A table, or a table and the parameters that a question may have."""
    packages: tuple[str, ...] = ()
    """What its code imports; logged with the versions that are installed."""
    tags: Mapping[str, str] = field(default_factory=dict)

    def requirements(self) -> list[str]:
        """For pip; local versions such as 2.9.0+cpu are on no index."""
        return [f"{name}=={version(name).partition('+')[0]}" for name in self.packages]


class Run:
    """A run of MLflow; one without an id keeps nothing, which is what `--no-track` uses."""

    id: str | None = None
    offline: Path | None = None
    """The file that keeps what the store did not take."""

    def __init__(
        self,
        run_id: str | None = None,
        client: MlflowClient | None = None,
        uri: str = "",
        workspace: Path = Path(),
        say: Callable[[str], None] = print,
    ) -> None:
        self.id = run_id
        self.used = False
        """Whether it holds a number, or a run below it that does."""
        self._client: Any = client
        self._uri = uri
        self._local = run_id is not None and is_local(workspace)
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
                f"The MLflow store {shown_uri(self._uri)} no longer answers ({first_line(error)});"
                f" the work goes on and its numbers are kept in {self._file.parent}."
            )

    def _send(self, call: Callable[[], Answer], *instead: Mapping[str, Any]) -> Answer | None:
        """Call MLflow, or keep `instead` in the workspace when it does not answer any more."""
        if self.id is None:
            return None
        if self.offline is None:
            try:
                return call()
            except FileNotFoundError:  # what was to be kept, not where
                raise
            except Exception as error:
                if not is_silence(error) or (self._local and not is_of_database(error)):
                    with disk_errors(self._file.parent.parent):
                        raise
                self._lost(error)
        with disk_errors(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as file:
                file.writelines(json.dumps(line, default=str) + "\n" for line in instead)
        return None

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Record one number."""
        if self.id is None:
            return
        from mlflow.entities import Metric

        self.used = True
        now = int(time.time() * 1000)
        self._pending.append(Metric(name, float(value), now, step or 0))
        if not self._held and time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._flush()

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Record several numbers of the same step."""
        for name, value in values.items():
            self.metric(name, value, step)

    @contextmanager
    def results_first(self, names: Sequence[str]) -> Iterator[None]:
        """Keep numbers back until the block ends and record `names` before the others.

        MLflow's comparison of runs begins with the metric that was recorded first.
        """
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
        """Record settings; nested ones get dotted names."""
        plain = {key: str(value)[:_PARAM_LIMIT] for key, value in flat(values).items()}

        def send() -> None:
            from mlflow.entities import Param

            params = [Param(key, value) for key, value in plain.items()]
            for start in range(0, len(params), _BATCH_LIMIT):
                self._client.log_batch(self.id, params=params[start : start + _BATCH_LIMIT])

        self._send(send, {"params": plain})

    def tag(self, key: str, value: object) -> None:
        """Attach a searchable word."""
        self._send(
            lambda: self._client.set_tag(self.id, key, str(value)), {"tag": key, "value": value}
        )

    def describe(self, markdown: str) -> None:
        """Set the description that the UI shows on the run's page."""
        self.tag("mlflow.note.content", markdown)

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Keep a copy of a file."""
        self._send(lambda: self._client.log_artifact(self.id, str(path), folder), {"file": path})

    def text(self, text: str, name: str) -> None:
        """Keep a text as a file."""
        self._send(lambda: self._client.log_text(self.id, text, name), {"text": text, "name": name})

    def figure(self, figure: Figure, name: str) -> None:
        """Keep a plot as PNG."""
        self._send(lambda: self._client.log_figure(self.id, figure, name), {"figure": name})

    def dataset(self, frame: pl.DataFrame, name: str, digest: str, source: str) -> None:
        """Record that the run used a data set; `frame` may be its first rows."""

        def send() -> None:
            from mlflow.data.polars_dataset import from_polars
            from mlflow.entities import DatasetInput, InputTag

            with warnings.catch_warnings():  # a local path has two equal interpretations
                warnings.simplefilter("ignore", UserWarning)
                data = from_polars(frame, source=source, name=name, digest=digest[:36])
            tags = [InputTag("mlflow.data.context", "training")]
            self._client.log_inputs(self.id, [DatasetInput(data._to_mlflow_entity(), tags)])

        self._send(send, {"dataset": name, "digest": digest, "source": source})

    def model(self, model: LoggedModel) -> str | None:
        """Log a model with the code of medapps; returns its models:/ address."""
        places = {key: path.resolve().as_uri() for key, path in model.artifacts.items()}

        def send() -> str:
            import mlflow

            with self._fluent(), warnings.catch_warnings():  # on integers with missing values
                warnings.simplefilter("ignore", UserWarning)
                info = mlflow.pyfunc.log_model(
                    name=model.name,
                    python_model=str(model.code),
                    artifacts=places,
                    input_example=model.example,
                    pip_requirements=model.requirements(),
                    code_paths=[str(_PACKAGE)],  # no index has this version of medapps
                    tags=dict(model.tags),
                )
            return str(info.model_uri)

        return self._send(send, {"model": model.name, "tags": model.tags, "files": places})

    def register(
        self, address: str, name: str, alias: str, description: str = "", **tags: str
    ) -> str | None:
        """Register a logged model under a name and move an alias to it; returns the version."""

        def send() -> str:
            import mlflow

            with self._fluent():
                made = str(mlflow.register_model(address, name, tags=tags).version)
            self._client.update_model_version(name, made, description)
            self._client.set_registered_model_alias(name, alias, made)
            return made

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


NO_RUN = Run()
