"""Every shipped config loads, names its command, and plans something that exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from medapps.config import resolve
from medapps.settings import Settings
from medapps.study.config import DEMO
from medapps.study.plan import dims_of, methods_of, quick, settings_for, tasks_of
from medapps.train.config import paper

FOLDER = Path(__file__).parents[2] / "configs"
CONFIGS = sorted(FOLDER.glob("*.yaml"))
PROMISED = {
    "demo", "paper", "fb15k237", "wn18rr", "skg_table", "ncf_ml1m", "baselines_fb15k237",
    "ciao", "douban_book", "blogcatalog",
}  # fmt: skip


def test_promised_configs_are_there():
    assert {path.stem for path in CONFIGS} >= PROMISED


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_loads_and_begins_with_its_command(path):
    resolve(Settings, file=path)
    first = path.read_text().splitlines()[0]
    assert first.startswith(("# medapps run ", "# medapps train ")) and path.name in first


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_planned_sizes_are_trained(path):
    settings = resolve(Settings, file=path)
    for item in settings.study.data:
        own = settings_for(settings, item)
        for task in tasks_of(own.study, item):
            methods = methods_of(own.study, task)
            assert methods
            if "med" in methods:
                assert set(dims_of(own, task, "med")) <= set(own.train.dims)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_planned_data_sets_and_labels_exist(path, data):
    import polars as pl

    for item in resolve(Settings, file=path).study.data:
        if item.name is None:
            continue
        folder = data(item.name)
        assert folder.is_dir()
        if item.labels:
            columns = pl.scan_parquet(folder / "labels.parquet").collect_schema()
            assert set(item.labels) <= set(columns)


def test_paper_is_the_literal_recipe():
    assert resolve(Settings, file=FOLDER / "paper.yaml").train == paper()


def test_demo_is_one_file():
    assert (FOLDER / "demo.yaml").read_text() == DEMO.read_text()
    demo = resolve(Settings, file=DEMO)
    assert {"med", "dt", "pca", "dualde"} <= set(demo.study.methods)
    assert demo.train.dims == (10, 100, 500)


def test_quick_is_smaller_and_keeps_the_plan():
    whole = resolve(Settings, file=FOLDER / "skg_table.yaml")
    small = quick(whole)
    assert small.study.seeds == (0,) and small.train.epochs <= 3
    assert small.study.data == whole.study.data and small.study.methods == whole.study.methods


def test_the_quick_budget_of_a_file_goes_before_the_tiny_one_and_before_a_data_sets_own():
    own = {"name": "wn18rr", "set": {"train.epochs": 24, "train.lr": 0.3}}
    study = {"data": [own], "seeds": [4, 5], "quick": {"train.epochs": 8, "study.dims": [10]}}
    whole = Settings.model_validate({"study": study, "train": {"dims": [10, 40]}})
    small = quick(whole)
    assert small.study.seeds == (4,) and small.study.dims == (10,) and small.study.limit == 1000
    for_data = settings_for(small, small.study.data[0])
    assert for_data.train.epochs == 8 and for_data.train.optimiser.lr == 0.3


def test_quick_leaves_what_the_user_has_given():
    own = {"name": "wn18rr", "set": {"train.epochs": 24}}
    study = {"data": [own], "seeds": [4, 5], "quick": {"train.epochs": 8, "train.lr": 0.7}}
    whole = Settings.model_validate({"study": study, "train": {"epochs": 6, "lr": 0.1}})
    small = quick(whole, given={"train.epochs", "study.seeds"})
    assert settings_for(small, small.study.data[0]).train.epochs == 6
    assert small.train.optimiser.lr == 0.7 and small.study.seeds == (4, 5)
