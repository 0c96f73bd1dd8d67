"""A classifier of sentences as one ONNX file with int8 weights."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from medapps.errors import MedappsError


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
    """Matrices and embeddings as int8; activations are scaled as they come."""
    try:
        import onnx
        import onnxscript  # noqa: F401
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError:
        raise MedappsError(
            "Export needs the packages onnx, onnxscript and onnxruntime.",
            fix="pip install 'medapps[export]'",
        ) from None
    names = ["input_ids", "attention_mask", "token_type_ids"]
    example = tuple(torch.ones(2, 8, dtype=torch.long) for _ in names)
    free = {0: torch.export.Dim("sentences"), 1: torch.export.Dim("tokens", max=512)}
    whole = path.with_name("whole.onnx")
    root = logging.getLogger()
    level = root.level
    with warnings.catch_warnings():  # the exporter warns about its own inside
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Logits(model).eval(),
            example,
            str(whole),
            input_names=names,
            output_names=["logits"],
            dynamic_shapes=(free, free, free),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        plain = onnx.load(whole)
        del plain.graph.value_info[:]  # shapes that no longer fit once weights are transposed
        onnx.save(plain, whole)
        root.setLevel(logging.ERROR)  # it advises a step that dynamic int8 does not need
        try:
            quantize_dynamic(str(whole), str(path), weight_type=QuantType.QInt8)
        finally:
            root.setLevel(level)
    whole.unlink()
