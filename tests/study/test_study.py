"""A whole study on tiny data: every stage once, found again, resumed, shown in MLflow."""

from __future__ import annotations

import json
import time
from pathlib import Path

import polars as pl
import pytest

from medapps.config import resolve, validate
from medapps.errors import Interrupted, MedappsError
from medapps.settings import Settings
from medapps.stages import Runner
from medapps.store import Workspace
from medapps.study.run import run_study
from medapps.train.session import Session

TINY = {
    "study": {
        "name": "tiny",
        "data": [{"synth": "tiny"}],
        "methods": ["med", "pca", "none", "shuffled", "oracle", "popularity", "als"],
        "tasks": [{"task": "label", "dims": [8]}, {"task": "recommend", "dims": [4]}],
        "seeds": [0, 1],
        "repeats": 2,
    },
    "train": {"dims": [4, 8, 16], "epochs": 2, "threads": 1},
    "label": {"epochs": 3, "controls": False},
    "recommend": {"ncf": {"epochs": 1}, "valid_users": 50},
}


def settings(**study):
    return validate(Settings, TINY | {"study": TINY["study"] | study}, where="the test")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished study and the workspace that it lives in."""
    root = tmp_path_factory.mktemp("study")
    return run_study(Runner(Workspace(root)), settings()), root


def client(root: Path):
    from mlflow.tracking import MlflowClient

    return MlflowClient(f"sqlite:///{root}/mlflow.db")


def test_every_method_is_measured_at_its_sizes(finished):
    done, _ = finished
    found = {(row.task, row.method, row.dim) for row in done.comparison.rows}
    label = {("label", method, 8) for method in ("med", "pca", "shuffled", "oracle")}
    products = {("recommend", method, 4) for method in TINY["study"]["methods"]}
    assert found == label | products
    labels = {row.seeds for row in done.comparison.rows if row.task == "label"}
    products = {row.seeds for row in done.comparison.rows if row.task == "recommend"}
    assert labels == {4}  # two trainings, two repetitions
    assert products == {2}  # parts are chosen, not drawn: one fit for each training


def test_second_run_skips_every_stage_within_seconds(finished):
    done, root = finished
    began = time.perf_counter()
    again = run_study(Runner(Workspace(root)), settings())
    assert time.perf_counter() - began < 10
    assert again.carried_out == 0 and again.skipped == len(done.ledger) == done.carried_out
    assert again.comparison == done.comparison and again.folder == done.folder
    assert again.runs == done.runs


def test_runs_are_children_of_the_study_in_the_experiment_of_the_data_set(finished):
    done, root = finished
    store = client(root)
    experiment = store.get_experiment_by_name("synth-tiny")
    runs = store.search_runs([experiment.experiment_id])
    parent = next(run for run in runs if run.info.run_name == "tiny")
    assert parent.info.run_id == done.runs["synth-tiny"]
    children = [r for r in runs if r.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    names = {run.info.run_name for run in children}
    assert {"med/8/label/0", "pca/4/recommend/1", "none/0/recommend/0", "dt/16/train/1"} <= names
    assert len(children) == len(runs) - 1 == len(done.ledger)
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_parent_shows_the_table_and_children_the_numbers_of_the_comparison(finished):
    done, root = finished
    store = client(root)
    parent = store.get_run(done.runs["synth-tiny"])
    table = parent.data.tags["mlflow.note.content"]
    assert table == (done.folder / "comparison.md").read_text() and "| med |" in table
    files = {item.path for item in store.list_artifacts(parent.info.run_id, "comparison")}
    assert "comparison/synth-tiny_recommend_retention.png" in files
    experiment = store.get_experiment_by_name("synth-tiny").experiment_id
    for row in done.comparison.rows:
        if (row.method, row.metric) != ("med", "full.ndcg_at_10"):
            continue
        query = "tags.method = 'med' and tags.task = 'recommend' and tags.dim = '4'"
        found = [r.data.metrics for r in store.search_runs([experiment], query)]
        assert all(next(iter(metrics)) == row.metric for metrics in found)  # the UI's first choice
        values = [metrics[row.metric] for metrics in found]
        assert len(values) == 2 and sum(values) / 2 == pytest.approx(row.value)


def test_interrupted_study_goes_on_under_the_same_parent(tmp_path):
    small = settings(methods=["med", "oracle"], tasks=["label"], seeds=[0], repeats=1)
    calls = iter(range(10_000))
    with pytest.raises(Interrupted) as stopped:
        run_study(
            Runner(Workspace(tmp_path / "a")),
            small,
            session=Session(stop=lambda: 15 if next(calls) > 4 else 0),
        )  # 2nd epoch
    assert stopped.value.signal_number == 15
    assert list((tmp_path / "a" / "checkpoints").iterdir())
    (note,) = (tmp_path / "a" / "studies").glob("*.json")
    first = json.loads(note.read_text())["run_id"]
    assert client(tmp_path / "a").get_run(first).info.status == "KILLED"
    went_on = run_study(Runner(Workspace(tmp_path / "a")), small)
    assert went_on.runs == {"synth-tiny": first}
    assert client(tmp_path / "a").get_run(first).info.status == "FINISHED"
    unbroken = run_study(Runner(Workspace(tmp_path / "b"), tracked=False), small)
    mine, whole = (
        {(r.method, r.dim, r.metric): r.value for r in result.comparison.rows}
        for result in (went_on, unbroken)
    )
    assert mine == whole


def test_untracked_study_leaves_no_store(tmp_path):
    small = settings(methods=["none"], tasks=["recommend"], seeds=[0], repeats=1, reference="none")
    done = run_study(Runner(Workspace(tmp_path), tracked=False), small)
    assert done.runs == {"synth-tiny": None} and not (tmp_path / "mlflow.db").exists()


def test_all_nine_baselines_are_ranked_beside_med(tiny_dataset, tmp_path):
    triples = pl.read_parquet(tiny_dataset / "skg.parquet").sample(fraction=1, shuffle=True, seed=0)
    kg = tmp_path / "kg"
    kg.mkdir()
    for name, part in (
        ("test", triples[:200]),
        ("valid", triples[200:400]),
        ("train", triples[400:]),
    ):
        part.write_parquet(kg / f"{name}.parquet")
    nine = ["dt", "ext", "ext-l", "ext-v", "pca", "bkd", "ta", "dualde", "iterde"]
    study = TINY["study"] | {
        "data": [str(kg)], "methods": ["med", *nine], "dims": [4], "tasks": ["rank"], "seeds": [0]
    }  # fmt: skip
    train = {"dims": [4, 16], "epochs": 1, "threads": 1}
    changes = {"study": study, "train": train, "baseline": {"search": {"when": "off"}}}
    values = validate(Settings, TINY | changes, where="the test")
    done = run_study(Runner(Workspace(tmp_path / "ws"), tracked=False), values)
    mrr = {row.method: row for row in done.comparison.rows if row.metric == "mrr"}
    assert set(mrr) == {"med", *nine}
    assert all(row.verdict for name, row in mrr.items() if name != "med")
    assert all(row.train_seconds > 0 and row.units == 400 for row in mrr.values())


def test_data_set_may_have_settings_of_its_own(finished):
    from medapps.study.config import StudyData
    from medapps.study.plan import settings_for

    item = StudyData(name="x", set={"recommend.ncf.epochs": 7})
    assert settings_for(settings(), item).recommend.ncf.epochs == 7
    with pytest.raises(MedappsError, match=r"recommend\.ncf\.epochs"):
        settings_for(settings(), StudyData(name="x", set={"recommend.ncf.epoch": 7}))


def test_students_stay_below_their_teacher():
    from medapps.study.config import StudyTask
    from medapps.study.plan import dims_of

    plan = settings(tasks=["rank"])
    assert dims_of(plan, StudyTask(task="rank"), "dualde") == (8, 4)
    assert dims_of(plan, StudyTask(task="rank"), "dt") == (16, 8, 4)


def test_missing_data_set_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.delenv("MEDAPPS_DATA", raising=False)
    study = settings(data=["nowhere"])
    with pytest.raises(MedappsError, match=f"'nowhere' in {tmp_path}"):
        run_study(Runner(Workspace(tmp_path), tracked=False), study, data=tmp_path)


def test_study_without_data_is_refused(tmp_path):
    with pytest.raises(MedappsError, match="names no data set"):
        run_study(Runner(Workspace(tmp_path)), resolve(Settings))
