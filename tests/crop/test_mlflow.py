"""A crop in MLflow: logged from a file, registered by tier, served by MLflow's own command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from medapps.crop.crop import Crop
from medapps.crop.export import Export, export_crop
from medapps.serve.register import log_crop
from medapps.tracking import track, tracking_uri
from tests.crop.conftest import make_crop

pytestmark = pytest.mark.filterwarnings("default")  # those of mlflow and what it imports


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Crop, Path, dict[str, str | None]]:
    """A crop logged twice, as phone and as server, in a store of its own."""
    root = tmp_path_factory.mktemp("store")
    crop = export_crop(make_crop(), root / "crop", Export(dtype="int8"))
    wide = export_crop(make_crop(dim=40), root / "wide")
    addresses = {}
    with track(root, experiment="crops", name="crop") as run:
        addresses["phone"] = log_crop(run, root / "crop", model="medapps-crop", tier="phone")
        addresses["server"] = log_crop(run, root / "wide", model="medapps-crop", tier="server")
    assert wide.dim == 40
    assert tracking_uri(root) == f"sqlite:///{root}/mlflow.db"  # MLflow left no address behind
    return crop, root, addresses


def test_the_alias_of_a_tier_loads_the_crop(
    logged: tuple[Crop, Path, dict[str, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow
    import pandas as pd

    crop, root, _ = logged
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(root))
    model = mlflow.pyfunc.load_model("models:/medapps-crop@phone")
    server = mlflow.pyfunc.load_model("models:/medapps-crop@server")
    users = ["u00003é", "nobody", "u00001é"]
    answer = model.predict(pd.DataFrame({"user": users}))
    vectors, known = crop.vectors(users)
    assert answer["user"].tolist() == users and answer["in_graph"].tolist() == known.tolist()
    assert np.array_equal(np.array(answer["vector"].tolist(), np.float32), vectors)
    assert len(server.predict(pd.DataFrame({"user": users}))["vector"][0]) == 40
    assert model.metadata.signature is not None
    assert model.metadata.signature.inputs.input_names() == ["user"]
    assert model.metadata.signature.outputs.input_names() == ["user", "in_graph", "vector"]
    assert model.metadata.saved_input_example_info is not None
    with pytest.raises(mlflow.exceptions.MlflowException, match="user"):
        model.predict(pd.DataFrame({"person": users}))


def test_logged_models_can_be_searched(logged: tuple[Crop, Path, dict[str, str | None]]) -> None:
    import mlflow

    _, root, addresses = logged
    client = mlflow.MlflowClient(tracking_uri(root))
    experiment = client.get_experiment_by_name("crops")
    assert experiment is not None
    found = client.search_logged_models([experiment.experiment_id])
    assert {model.name for model in found} == {"crop-10-int8", "crop-40-float32"}
    assert {model.tags["dim"] for model in found} == {"10", "40"}
    assert addresses["phone"] != addresses["server"]


def test_a_logged_crop_of_integers_takes_integers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow
    import pandas as pd

    crop = export_crop(make_crop(integers=True), tmp_path / "crop")
    with track(tmp_path, experiment="crops", name="crop") as run:
        address = log_crop(run, tmp_path / "crop", model="medapps-crop")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(tmp_path))
    model = mlflow.pyfunc.load_model(address)
    assert model.metadata.signature.inputs.input_types() == [mlflow.types.DataType.long]
    answer = model.predict(pd.DataFrame({"user": [21, 22]}))
    assert answer["user"].tolist() == [21, 22] and answer["in_graph"].tolist() == [True, False]
    assert np.array_equal(np.array(answer["vector"][0], np.float32), crop.vectors([21])[0][0])


@pytest.mark.slow
def test_mlflow_models_predict_works(
    logged: tuple[Crop, Path, dict[str, str | None]], tmp_path: Path
) -> None:
    crop, root, _ = logged
    question = tmp_path / "in.json"
    users = ["u00003é", "nobody"]
    question.write_text(
        json.dumps({"dataframe_split": {"columns": ["user"], "data": [[u] for u in users]}})
    )
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "models",
        "predict",
        "-m",
        "models:/medapps-crop@phone",
    ]
    command += ["--env-manager", "local", "-i", str(question), "-o", str(tmp_path / "out.json")]
    done = subprocess.run(
        command,
        env=os.environ | {"MLFLOW_TRACKING_URI": tracking_uri(root), "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out.json").read_text())["predictions"]
    vectors, _ = crop.vectors(users)
    assert [row["in_graph"] for row in rows] == [True, False]
    assert np.array_equal(np.array([row["vector"] for row in rows], np.float32), vectors)
