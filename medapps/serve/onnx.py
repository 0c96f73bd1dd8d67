"""The device bundle: NCF as ONNX, the item table and the user vectors; needs no torch to run.

The graph takes one user at a time: `user` (1, width) its own vector, `service` (1, dim + 1) as
stored, `items` (n, width) any part of the item table; it gives `scores` (n,).
"""

from __future__ import annotations

import warnings
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
                left = left + model.service_input(service)
            hidden = items[:, : model.mlp] @ model.item_part + left
            score = score + model.climb(hidden) @ model.out[model.gmf :]
        return score


def export_onnx(
    recommender: NcfRecommender, folder: Path, *, dtype: str = "float16", force: bool = False
) -> dict[str, Any]:
    """Write `ncf.onnx`, item and user tables; vectors of users as float32, float16 or int8."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise MedappsError(
            "Export needs the packages onnx and onnxscript.", fix="pip install 'medapps[export]'"
        ) from None
    model = recommender.model.eval()
    width = model.users.shape[1]
    example: list[Tensor] = [torch.zeros(1, width), torch.zeros(7, width)]
    names = ["user", "items"]
    shapes: list[dict[int, Any] | None] = [None, {0: torch.export.Dim("n")}]
    if model.service_dim:
        example.append(torch.zeros(1, model.service_dim))
        names.append("service")
        shapes.append(None)
    with writing(folder, kind="bundle", provenance=Provenance(force=force)) as draft:
        with warnings.catch_warnings():  # torch's exporter warns about its own inside
            warnings.simplefilter("ignore")
            torch.onnx.export(
                Device(model).eval(),
                tuple(example),
                str(draft.path("ncf.onnx")),
                input_names=names,
                output_names=["scores"],
                dynamic_shapes=tuple(shapes),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
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
    size = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    return {"bundle_bytes": sum(size.values()), "onnx_bytes": size["ncf.onnx"]}
