"""The device bundle: ONNX Runtime gives the scores of torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from medapps.arrays import open_arrays
from medapps.crop.quantize import dequantize
from medapps.crop.service import NamedVectors
from medapps.graph.split import split_purchases
from medapps.recommend.config import NcfConfig, RecommendConfig
from medapps.recommend.ncf_paper.model import NcfRecommender
from medapps.recommend.ncf_paper.problem import prepare
from medapps.recommend.ncf_paper.run import train_ncf_paper
from medapps.store import read_manifest


@pytest.fixture(scope="module", params=["neumf", "gmf", "none"])
def recommender(
    request: pytest.FixtureRequest, planted: NamedVectors, interactions: pl.DataFrame
) -> NcfRecommender:
    mode = "gmf" if request.param == "gmf" else "neumf"
    config = RecommendConfig(ncf=NcfConfig(epochs=3, learning_rate=0.02, mode=mode))
    source = None if request.param == "none" else planted
    study = prepare(split_purchases(interactions), config)
    return train_ncf_paper(source, study, config, seeds=(0,)).model


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_onnx_runtime_equals_torch(
    recommender: NcfRecommender, tmp_path: Path, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    from medapps.serve.onnx import export_onnx

    export_onnx(recommender, tmp_path / "bundle", dtype=dtype)
    assert "torchvision" not in caplog.text
    tables = open_arrays(tmp_path / "bundle" / "tables.safetensors")
    session = runtime.InferenceSession(
        str(tmp_path / "bundle" / "ncf.onnx"), providers=["CPUExecutionProvider"]
    )
    wanted = {entry.name for entry in session.get_inputs()}
    about = read_manifest(tmp_path / "bundle", kind="bundle").about
    for told, real in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
        assert {name: port["shape"] for name, port in about[told].items()} == {
            port.name: port.shape for port in real
        }
        assert all(port["dtype"] == "float32" for port in about[told].values())
    model = recommender.model
    for row in (0, 7, 150):
        given = {"user": tables["users"][row : row + 1], "items": tables["items"][:]}
        service = None
        if "service" in tables and "service" in wanted:
            scale = tables["service_scale"][row : row + 1] if "service_scale" in tables else None
            vector = dequantize(tables["service"][row : row + 1], scale)
            service = np.column_stack([vector, tables["missing"][row : row + 1]])
            given["service"] = service = service.astype(np.float32)
            real = recommender.service[row, :-1]
            assert np.abs(vector[0] - real).max() <= np.abs(real).max() / 100
        (scores,) = session.run(["scores"], {k: np.ascontiguousarray(v) for k, v in given.items()})
        with torch.no_grad():
            expected = model(
                torch.tensor([row]),
                torch.arange(len(recommender.items))[None],
                None if service is None else torch.from_numpy(service),
            )[0]
        assert np.abs(scores - expected.numpy()).max() < 1e-5
