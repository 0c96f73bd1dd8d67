"""The store of a workspace may be moved, killed or broken; what is wrong is named and mended."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from medapps.errors import MedappsError, masked
from medapps.tracking import (
    LoggedModel,
    check_names,
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
from tests.tracking.runs import start, stored

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
