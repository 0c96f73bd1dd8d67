"""Runs end as they should, on a real store and a real server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pandas as pd
import polars as pl
import psutil
import pytest
from mlflow.entities import Run as StoredRun
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from medapps.errors import Interrupted, MedappsError, masked
from medapps.tracking import (
    NO_RUN,
    LoggedModel,
    Run,
    check_names,
    registered,
    repair,
    track,
    tracking_uri,
)
from medapps.tracking.sqlite import (
    HOST,
    PID,
    STARTED,
    abandoned,
    check_places,
    identity,
    mend,
    store_error,
)


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
    from medapps.tracking.run import MlflowRun

    public = {name for name in vars(MlflowRun) if not name.startswith("_")} - {"id"}
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
            with suppress(ProcessLookupError):
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


AWKWARD = "a b%20[1]#x?y=1"
MODEL = """
import mlflow
class Same(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input):
        return model_input
mlflow.models.set_model(Same())
"""


def files_under(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def test_a_path_is_taken_literally_whatever_its_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workspace = Path(AWKWARD)
    workspace.mkdir()
    (workspace / "code.py").write_text(MODEL)
    with track(workspace, experiment="e", name="n") as run:
        run.metric("loss", 0.5)
        run.text("hello", "note.txt")
        file = workspace / "code.py"
        address = run.model(LoggedModel("m", file, {"a": file}, pd.DataFrame({"a": [1]})))
        assert address is not None
        assert run.register(address, "registered", "phone") == "1"
    assert [path.name for path in tmp_path.iterdir()] == [AWKWARD]
    (kept,) = workspace.glob("mlruns/models/*/artifacts/artifacts/code.py")
    assert kept.read_text() == MODEL
    assert (workspace / "mlruns" / str(run.id) / "artifacts" / "note.txt").exists()
    with closing(sqlite3.connect(workspace / "mlflow.db")) as db:
        assert db.execute("SELECT status FROM runs").fetchall() == [("FINISHED",)]
    listed = MlflowClient(tracking_uri(workspace)).list_artifacts(str(run.id))
    assert [file.path for file in listed] == ["note.txt"]


@pytest.mark.parametrize("move", [shutil.move, shutil.copytree])
def test_a_moved_or_copied_workspace_keeps_its_files_with_it(
    move, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    old, new = tmp_path / "old", tmp_path / "another place"
    (tmp_path / "code.py").write_text(MODEL)
    with track(old, experiment="e", name="before") as run:
        run.text("hello", "note.txt")
        address = run.model(LoggedModel("m", tmp_path / "code.py", {}, pd.DataFrame({"a": [1]})))
        assert address is not None
        run.register(address, "registered", "phone")
    move(old, new)
    left = files_under(old)
    said: list[str] = []
    with track(new, experiment="e", name="after", say=said.append) as later:
        later.text("hello", "note.txt")
    with track(new, experiment="e", name="again", say=said.append):
        pass
    assert len(said) == 1 and str(old) in said[0] and str(new) in said[0]
    assert files_under(old) == left
    client = MlflowClient(tracking_uri(new), registry_uri=tracking_uri(new))
    shutil.rmtree(old, ignore_errors=True)
    for each in (run, later):
        assert Path(client.download_artifacts(str(each.id), "note.txt")).read_text() == "hello"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(new))
    model = mlflow.pyfunc.load_model("models:/registered@phone")
    assert model.predict(pd.DataFrame({"a": [3]}))["a"].to_list() == [3]


def start(workspace: Path, name: str = "orphan") -> subprocess.Popen[str]:
    """A process that holds a run open in the workspace."""
    code = (
        "import sys, time, pathlib\n"
        "from medapps.tracking import track\n"
        f"with track(pathlib.Path(sys.argv[1]), experiment='other', name={name!r}):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(60)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(workspace)], stdout=subprocess.PIPE, text=True
    )


def test_a_store_is_there_whole_or_not_at_all_when_its_maker_is_killed(tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    process = start(workspace)
    part = workspace / ".mlflow.db.part"
    while not part.exists() or part.stat().st_size < 20_000:  # some tables are made
        assert process.poll() is None
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert not (workspace / "mlflow.db").exists()
    with track(workspace, experiment="e", name="next") as run:
        run.metric("loss", 0.5)
    assert stored(workspace, "next").data.metrics["loss"] == 0.5
    assert not list(workspace.glob(".mlflow.db.part*"))


def break_garbage(path: Path) -> None:
    path.write_bytes(b"garbage " * 1000)


def break_half_made(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE experiments (experiment_id INTEGER)")


def break_late(path: Path) -> None:
    """A table that a later step would have made is missing, the one before it is not finished."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
        db.execute("DROP TABLE logged_models")


@pytest.mark.parametrize("damage", [break_garbage, break_half_made, break_late])
def test_a_broken_store_is_named_at_once_and_repaired_on_demand(
    damage, workspace: Path, tmp_path: Path
) -> None:
    with track(workspace, experiment="e", name="any"):
        pass
    broken = tmp_path / "mlflow.db"
    if damage is break_late:
        shutil.copy(workspace / "mlflow.db", broken)
    damage(broken)
    content = broken.read_bytes()
    began = time.monotonic()
    with (
        pytest.raises(MedappsError, match="doctor --repair"),
        track(tmp_path, experiment="e", name="n"),
    ):
        pass
    assert time.monotonic() - began < 10
    if damage is not break_late:
        assert broken.read_bytes() == content
    aside = repair(tmp_path)
    assert aside is not None and aside.parent == tmp_path
    assert repair(tmp_path) is None
    program = (
        "import sys, pathlib\nfrom medapps.tracking import track\n"
        "with track(pathlib.Path(sys.argv[1]), experiment='e', name='after'): pass\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    assert stored(tmp_path, "after").info.status == "FINISHED"


def test_a_store_that_is_locked_is_not_taken_for_broken(tmp_path: Path) -> None:
    with track(tmp_path, experiment="e", name="kept"):
        pass
    assert repair(tmp_path) is None
    assert "locked" in str(store_error(tmp_path / "x", sqlite3.OperationalError("is locked")))
    assert stored(tmp_path, "kept").info.status == "FINISHED"


def test_a_killed_run_of_any_experiment_is_ended_and_a_living_one_is_not(workspace: Path) -> None:
    with start(workspace, "dead") as dead, start(workspace, "alive") as alive:
        for process in (dead, alive):
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
        dead.kill()
        dead.wait()
        mend(workspace)
        assert stored(workspace, "dead").info.status == "KILLED"
        assert stored(workspace, "alive").info.status == "RUNNING"
        alive.kill()


def test_a_number_that_went_to_another_process_does_not_keep_a_run_alive() -> None:
    mine = {key: str(value) for key, value in identity().items()}
    assert not abandoned(mine)
    assert abandoned(mine | {STARTED: str(float(mine[STARTED]) - 100)})
    assert not abandoned(mine | {HOST: "elsewhere", PID: "999999999"})


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


@pytest.mark.parametrize("name", ["mlruns", ".mlflow.lock", "graphs", "embeddings", "mlflow.db"])
def test_what_stands_in_the_place_of_a_folder_or_file_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to(tmp_path / "nowhere")
    with pytest.raises(MedappsError, match="link that leads nowhere"):
        check_places(tmp_path)
    (tmp_path / name).unlink()
    if name in ("mlflow.db", ".mlflow.lock"):
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).touch()
    with pytest.raises(MedappsError, match=f"{name} is a (file, not a folder|folder, not a file)"):
        check_places(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "https://me:pass-word@host:5000/x",
        "https://me:p@ss-word@host",
        "postgresql://me:p/ss-word@host/db",
        "https://pass-word@host",
        "postgresql://host/db?user=me&password=pass-word",
    ],
)
def test_passwords_of_addresses_are_masked(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", text)
    assert "ss-word" not in masked(f"API request to '{text}' failed")
    assert masked("file:///a/b@c and models:/m@phone") == "file:///a/b@c and models:/m@phone"
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hush-hush")
    assert "hush" not in masked("it was hush-hush")


@pytest.mark.parametrize(
    "tier", ["latest", "LATEST", "v1", "V22", "a b", "../x", "", "phone", "x-1"]
)
def test_a_tier_is_refused_where_mlflow_refuses_it_and_nowhere_else(tier: str) -> None:
    from mlflow.utils import validation

    def mlflow_takes(tier: str) -> None:
        validation._validate_model_alias_name(tier)
        validation._validate_model_alias_name_reserved(tier)

    assert refuses(mlflow_takes, tier) == refuses(lambda name: check_names("model", name), tier)


@pytest.mark.parametrize("model", ["../x", "a:b", " ", "a b", "medapps-crop", "[/red]", "[red]"])
def test_a_model_is_refused_where_mlflow_refuses_it_and_nowhere_else(model: str) -> None:
    from mlflow.utils.validation import _validate_model_name

    assert refuses(_validate_model_name, model) == refuses(lambda n: check_names(n, None), model)


def refuses(check: Callable[[str], None], name: str) -> bool:
    try:
        check(name)
    except (MlflowException, MedappsError):
        return True
    return False


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
