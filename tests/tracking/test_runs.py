"""Runs end as they should, on a real store and a real server."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import polars as pl
import psutil
import pytest
from mlflow.tracking import MlflowClient

from medapps.errors import Interrupted, MedappsError
from medapps.tracking import (
    NO_RUN,
    registered,
    track,
    tracking_uri,
)
from tests.tracking.runs import stored


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


def test_the_silent_run_accepts_everything_and_needs_no_mlflow(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\nfrom medapps.tracking import NO_RUN as run\n"
        "with run.results_first(['loss']):\n"
        "    run.metrics({'loss': 1.0, 'mrr': 0.5}, 3)\n"
        "run.params({'a': {'b': 1}}); run.tag('a', 1); run.describe('text')\n"
        "run.artifact(pathlib.Path('nowhere')); run.text('a', 'b'); run.figure(None, 'f')\n"
        "run.dataset(None, 'a', 'b', 'c')\n"
        "assert run.register('address', 'name', 'alias') is None\n"
        "assert run.id is None and not run.used and 'mlflow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert not list(tmp_path.iterdir())


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


def test_a_wrong_input_leaves_no_run_and_a_failure_at_work_does(workspace: Path) -> None:
    def count(name: str) -> list[str]:
        client = MlflowClient(tracking_uri(workspace))
        ids = [e.experiment_id for e in client.search_experiments()]
        found = client.search_runs(ids, f"attributes.run_name = '{name}'")
        return [run.info.status for run in found]

    for name, work in (("wrong", False), ("worked", True)):
        with (
            pytest.raises(MedappsError),
            track(workspace, experiment="e", name=name, params={"a": 1}) as run,
        ):
            if work:
                run.metric("loss", 1.0)
            raise MedappsError("no")
    assert (count("wrong"), count("worked")) == ([], ["FAILED"])
    with (
        pytest.raises(MedappsError),
        track(workspace, experiment="e", name="parent") as parent,
    ):
        with track(workspace, experiment="e", name="child", parent=parent):
            pass
        raise MedappsError("no")
    assert count("parent") == ["FAILED"]


@pytest.mark.slow
def test_work_goes_on_and_keeps_its_numbers_when_the_server_dies(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    workspace, said = tmp_path / "w", []
    with track(workspace, experiment="e", name="study", say=said.append) as parent:
        with track(workspace, experiment="e", name="n", say=said.append) as run:
            run.metric("loss", 0.5, 1)
            for process in psutil.Process().children(recursive=True):
                process.kill()
            run.metric("loss", 0.25, 2)
            run.text("hello", "note.txt")
            run.artifact(Path(__file__))
            run.tag("a", "b")
        assert run.offline is not None
        with track(workspace, experiment="e", name="next", say=said.append) as later:
            later.metric("mrr", 0.125)
        assert registered(workspace, "e", "model", "phone", "digest") is None
        parent.metric("all", 1.0)
    assert len(said) == 1 and str(workspace / "offline") in said[0]
    lines = [json.loads(line) for line in run.offline.read_text().splitlines()]
    assert {"metric": "loss", "value": 0.25, "step": 2} in lines
    assert lines[-1] == {"status": "FINISHED"}
    assert later.offline is not None and '"mrr"' in later.offline.read_text()
    assert parent.offline is not None and '"all"' in parent.offline.read_text()


def test_a_server_that_never_answers_is_named_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:hush-hush@127.0.0.1:{port}")
        monkeypatch.delenv("MLFLOW_HTTP_REQUEST_TIMEOUT", raising=False)
        monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
        began = time.monotonic()
        with (
            pytest.raises(MedappsError, match=r"me:\*\*\*@127\.0\.0\.1.*--no-track") as caught,
            track(tmp_path, experiment="e", name="n"),
        ):
            pass
    assert time.monotonic() - began < 15
    assert "hush-hush" not in str(caught.value)


def test_a_store_that_fails_at_work_does_not_end_it(tmp_path: Path) -> None:
    said: list[str] = []
    with track(tmp_path, experiment="e", name="n", say=said.append) as run:
        run.metric("loss", 0.5, 1)
        with closing(sqlite3.connect(tmp_path / "mlflow.db")) as db, db:
            db.execute("DROP TABLE metrics")
    assert len(said) == 1 and "no longer answers" in said[0]
    lines = (tmp_path / "offline" / f"{run.id}.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"metric": "loss", "value": 0.5, "step": 1}


def test_a_file_that_is_not_there_is_no_fault_of_the_store(workspace: Path) -> None:
    with (
        pytest.raises(Exception, match="nowhere"),
        track(workspace, experiment="e", name="missing") as run,
    ):
        run.artifact(workspace / "nowhere")
    assert run.offline is None
    assert stored(workspace, "missing").info.status == "FAILED"
