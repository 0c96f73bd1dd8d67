"""Runs end as they should, on a real store and a real server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from mlflow.entities import Run as StoredRun
from mlflow.tracking import MlflowClient

from medapps.errors import Interrupted, MedappsError
from medapps.tracking import NO_RUN, Run, track, tracking_uri


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for the module: building its tables takes seconds."""
    return tmp_path_factory.mktemp("workspace")


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def stored(workspace: Path, name: str) -> StoredRun:
    client = MlflowClient(tracking_uri(workspace))
    experiments = [e.experiment_id for e in client.search_experiments()]
    return client.search_runs(experiments, f"attributes.run_name = '{name}'")[0]


def test_a_run_keeps_params_metrics_tags_data_and_files(workspace: Path) -> None:
    with track(
        workspace, experiment="e", name="full", params={"a": {"b": 1}}, tags={"method": "med"}
    ) as run:
        for step in range(3):
            run.metrics({"loss": 1.0 / (step + 1), "mrr": 0.1 * step}, step)
        run.text("hello", "note.txt")
        run.describe("**the** table")
        run.dataset(pl.DataFrame({"head": ["a"]}), "graph", "d" * 64, "somewhere")
    found = stored(workspace, "full")
    assert found.info.status == "FINISHED"
    assert found.data.params == {"a.b": "1"}
    assert found.data.metrics["loss"] == pytest.approx(1 / 3)
    assert found.data.tags["method"] == "med"
    assert found.data.tags["mlflow.note.content"] == "**the** table"
    assert found.inputs.dataset_inputs[0].dataset.digest == "d" * 36
    client = MlflowClient(tracking_uri(workspace))
    history = client.get_metric_history(found.info.run_id, "loss")
    assert [m.step for m in history] == [0, 1, 2]
    assert [f.path for f in client.list_artifacts(found.info.run_id)] == ["note.txt"]
    assert (workspace / "mlruns" / found.info.run_id / "artifacts" / "note.txt").exists()


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("x"), "FAILED"), (KeyboardInterrupt(), "KILLED"), (Interrupted(), "KILLED")],
)
def test_a_broken_off_run_is_not_left_running(
    workspace: Path, error: BaseException, status: str
) -> None:
    name = f"broken {status} {type(error).__name__}"
    with (
        pytest.raises(type(error)),
        track(workspace, experiment="e", name=name) as run,
    ):
        run.metric("before", 1.0)
        raise error
    found = stored(workspace, name)
    assert found.info.status == status
    assert found.data.metrics["before"] == 1.0


def test_a_run_whose_process_was_killed_is_ended_by_the_next_one(workspace: Path) -> None:
    code = (
        "import sys, time, pathlib\n"
        "from medapps.tracking import track\n"
        "with track(pathlib.Path(sys.argv[1]), experiment='e', name='orphan'):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(workspace)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGKILL)
    assert stored(workspace, "orphan").info.status == "RUNNING"
    with track(workspace, experiment="e", name="next"):
        pass
    assert stored(workspace, "orphan").info.status == "KILLED"


def test_children_name_their_parent(workspace: Path) -> None:
    with (
        track(workspace, experiment="e", name="study") as parent,
        track(workspace, experiment="e", name="stage", parent=parent) as child,
    ):
        assert child.id != parent.id
    assert stored(workspace, "stage").data.tags["mlflow.parentRunId"] == parent.id


def test_without_tracking_no_store_is_made(tmp_path: Path) -> None:
    with track(tmp_path / "w", experiment="e", name="n", enabled=False) as run:
        run.metric("loss", 1.0)
        run.params({"a": 1})
    assert run is NO_RUN
    assert not (tmp_path / "w").exists()


def test_the_silent_run_accepts_everything_the_real_one_does() -> None:
    from medapps.tracking import _MlflowRun

    public = {name for name in vars(_MlflowRun) if not name.startswith("_")} - {"flush", "id"}
    assert public <= set(vars(Run))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    program = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
    program += ["--host", "127.0.0.1", "--port", str(port)]
    program += ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db"]
    program += ["--artifacts-destination", str(tmp_path / "artifacts")]
    log = (tmp_path / "server.log").open("w")
    with subprocess.Popen(
        program, stdout=log, stderr=log, cwd=tmp_path, start_new_session=True
    ) as process:
        try:
            for _ in range(240):
                try:
                    urllib.request.urlopen(f"{address}/health", timeout=1)
                    break
                except OSError:
                    time.sleep(0.5)
            else:
                pytest.fail((tmp_path / "server.log").read_text())
            yield address
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            log.close()


@pytest.mark.slow
def test_a_tracking_server_is_used_when_the_environment_names_one(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    with track(tmp_path / "w", experiment="remote", name="far") as run:
        run.metric("loss", 0.5, 1)
        run.text("hello", "note.txt")
    found = stored(tmp_path, "far")
    assert (found.info.status, found.data.metrics["loss"]) == ("FINISHED", 0.5)
    assert not (tmp_path / "w" / "mlflow.db").exists()
    assert [f.path for f in MlflowClient(server).list_artifacts(found.info.run_id)] == ["note.txt"]


def test_a_store_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with (
        pytest.raises(MedappsError, match=r"127\.0\.0\.1:9.*--no-track"),
        track(tmp_path, experiment="e", name="n"),
    ):
        pass
