"""Networks as ONNX files, which need no torch to run.

The bundle of a recommender holds NCF, the item table and the user vectors. Its network takes one
user at a time: `user` (1, width) its own vector, `service` (1, dim + 1) as stored, `items`
(n, width) any part of the item table; it gives `scores` (n,). A classifier of sentences is one file
with int8 weights.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from medapps.crop.quantize import quantize
from medapps.errors import MedappsError
from medapps.recommend.ncf_paper.model import NcfRecommender
from medapps.recommend.ncf_paper.network import NeuMF
from medapps.store import Provenance, writing


class Device(nn.Module):
    """NeuMF over vectors instead of ids."""

    def __init__(self, model: NeuMF) -> None:
        super().__init__()
        self.model = model

    def forward(self, user: Tensor, items: Tensor, service: Tensor | None = None) -> Tensor:
        """Logits (n,) of items (n, width) for one user (1, width)."""
        model = self.model
        score = model.out_bias.expand(items.shape[0])
        if model.gmf:
            weight = user[0, model.mlp :] * model.out[: model.gmf]
            score = score + items[:, model.mlp :] @ weight
        if model.mlp:
            left = user[:, : model.mlp] @ model.user_part + model.first_bias
            if service is not None:
                left = left + service @ model.service_part
            hidden = items[:, : model.mlp] @ model.item_part + left
            score = score + model.climb(hidden) @ model.out[model.gmf :]
        return score


def export_onnx(
    recommender: NcfRecommender, folder: Path, *, dtype: str = "float16", force: bool = False
) -> dict[str, Any]:
    """Write `ncf.onnx`, item and user tables; vectors of users as float32, float16 or int8."""
    model = recommender.model.eval()
    width = model.users.shape[1]
    example = {"user": torch.zeros(1, width), "items": torch.zeros(7, width)}
    shapes: list[dict[int, Any] | None] = [None, {0: torch.export.Dim("n")}]
    if model.service_dim:
        example["service"] = torch.zeros(1, model.service_dim)
        shapes.append(None)
    _check_packages()
    with writing(folder, kind="bundle", provenance=Provenance(force=force)) as draft:
        _export(Device(model), example, shapes, "scores", draft.path("ncf.onnx"))
        vectors = {"users": model.users.detach().numpy(), "items": model.items.detach().numpy()}
        arrays = {name: value.astype(np.float32) for name, value in vectors.items()}
        if recommender.service is not None:
            stored, scale = quantize(recommender.service[:, :-1], dtype)
            arrays["service"] = stored
            if scale is not None:
                arrays["service_scale"] = scale
            arrays["missing"] = recommender.service[:, -1].astype(np.uint8)
        arrays["seen"] = recommender.seen.keys
        draft.arrays("tables.safetensors", arrays)
        recommender.users.save(draft.path("users.safetensors"))
        recommender.items.save(draft.path("items.safetensors"))
        draft.about = {"method": recommender.method, "dim": recommender.dim, "dtype": dtype}
        draft.about |= _ports(draft.path("ncf.onnx"))
    size = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    return {"bundle_bytes": sum(size.values()), "onnx_bytes": size["ncf.onnx"]}


def _ports(path: Path) -> dict[str, Any]:
    """Inputs and outputs of a written graph: number type, and shape with names of free axes."""
    import onnx

    graph = onnx.load(path).graph

    def told(values: Any) -> dict[str, dict[str, Any]]:
        kinds = ((value.name, value.type.tensor_type) for value in values)
        return {
            name: {
                "dtype": onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name,
                "shape": [axis.dim_param or axis.dim_value for axis in kind.shape.dim],
            }
            for name, kind in kinds
        }

    return {"inputs": told(graph.input), "outputs": told(graph.output)}


class Logits(nn.Module):
    """Tokens in, logits out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Logits (B, C) of tokens (B, L)."""
        found: Tensor = self.model(input_ids, attention_mask, token_type_ids).logits
        return found


def write_onnx(model: nn.Module, path: Path) -> None:
    """A classifier with matrices and embeddings as int8; activations are scaled as they come."""
    _check_packages()
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    names = ("input_ids", "attention_mask", "token_type_ids")
    example = {name: torch.ones(2, 8, dtype=torch.long) for name in names}
    free = {0: torch.export.Dim("sentences"), 1: torch.export.Dim("tokens", max=512)}
    whole = path.with_name("whole.onnx")
    _export(Logits(model), example, [free, free, free], "logits", whole)
    plain = onnx.load(whole)
    del plain.graph.value_info[:]  # shapes that no longer fit once weights are transposed
    onnx.save(plain, whole)
    with _errors_only(""):  # it advises a step that dynamic int8 does not need
        quantize_dynamic(str(whole), str(path), weight_type=QuantType.QInt8)
    whole.unlink()


@contextmanager
def _errors_only(name: str) -> Iterator[None]:
    """Without the advice of a logger."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _check_packages() -> None:
    if not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        raise MedappsError(
            "Export needs the packages onnx, onnxscript and onnxruntime.",
            fix="pip install 'medapps[export]'",
        )


def _export(
    net: nn.Module,
    example: Mapping[str, Tensor],
    shapes: list[dict[int, Any] | None],
    output: str,
    path: Path,
) -> None:
    """Write a network with named inputs, some of whose axes are free."""
    # torch's exporter warns about its own inside, and tells that torchvision is not installed
    with warnings.catch_warnings(), _errors_only("torch.onnx"):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net.eval(),
            tuple(example.values()),
            str(path),
            input_names=list(example),
            output_names=[output],
            dynamic_shapes=tuple(shapes),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
