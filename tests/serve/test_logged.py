"""Logged models carry the code that they need, and stand in the registry with all that helps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import medapps
from medapps.tracking import tracking_uri
from tests.serve.conftest import Shop

pytestmark = pytest.mark.filterwarnings("default")  # those of mlflow and what it imports
ALONE = """
import importlib.util, json, sys
sys.path += json.loads(sys.argv[1])
assert importlib.util.find_spec("medapps") is None
import mlflow, pandas as pd
mlflow.set_tracking_uri(sys.argv[2])
table = pd.DataFrame({"user": json.loads(sys.argv[3])})
answers = {}
for address in json.loads(sys.argv[4]):
    params = {"k": 3} if "recommender" in address else None
    model = mlflow.pyfunc.load_model(address)
    answers[address] = json.loads(model.predict(table, params=params).to_json(orient="columns"))
print(json.dumps(answers))
"""
CROP, LABELLER, RECOMMENDER = (
    "models:/medapps-crop@phone",
    "models:/medapps-labeller@place-dim-4",
    "models:/medapps-recommender@dim-4",
)


def test_models_load_where_medapps_is_not_installed(shop: Shop, tmp_path: Path) -> None:
    own = Path(medapps.__file__).parents[1]
    packages = [p for p in sys.path if "site-packages" in p and Path(p) != own]
    addresses = json.dumps([CROP, LABELLER, RECOMMENDER])
    given = json.dumps(packages), tracking_uri(shop.root), json.dumps(shop.users), addresses
    done = subprocess.run(  # -S: no .pth leads to the checkout
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            ALONE,
            *given,
            json.dumps([CROP, LABELLER, RECOMMENDER]),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    users = pl.Series("user", shop.users)
    vectors, known = shop.crop.vectors(users)
    assert list(answers[CROP]["in_graph"].values()) == known.tolist()
    found = np.array(list(answers[CROP]["vector"].values()))
    assert found == pytest.approx(vectors, abs=1e-6)
    labels = shop.labeller.predict(shop.crop, users)
    assert list(answers[LABELLER]["place"].values()) == labels["place"].to_list()
    lists = shop.recommender.recommend(users, 3)
    assert list(answers[RECOMMENDER]["item"].values()) == lists["item"].to_list()
    assert list(answers[RECOMMENDER]["has_purchases"].values()) == lists["has_purchases"].to_list()


def test_registered_models_say_what_they_are(strings: Shop) -> None:
    from mlflow import MlflowClient
    from mlflow.models import Model

    client = MlflowClient(tracking_uri(strings.root))
    for address in (CROP, LABELLER, RECOMMENDER):
        name, _, alias = address.removeprefix("models:/").partition("@")
        version = client.get_model_version_by_alias(name, alias)
        assert "users" in version.description
        assert version.tags["dim"] == "4" and len(version.tags["digest"]) == 64
        kept = str(version.source).removeprefix("models:/")
        folder = strings.root / "mlruns" / "models" / kept / "artifacts"
        model = Model.load(str(folder))
        assert model.signature is not None
        assert model.signature.inputs.input_names() == ["user"]
        assert model.saved_input_example_info is not None
        needed = (folder / "requirements.txt").read_text()
        assert "medapps" not in needed and "polars==" in needed and "+" not in needed
        assert (folder / "code" / "medapps" / "__init__.py").is_file()
        params = model.signature.params
        assert (params is not None) == (address == RECOMMENDER)
