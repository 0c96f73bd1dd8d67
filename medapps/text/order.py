"""Order before slicing: the coordinates of a trained BERT are not sorted, so sort them.

Permuting the hidden coordinates everywhere, the heads of a layer, the rows of a head or the neurons
of a layer does not change what the full network computes. Each is moved by the product of the
lengths of what writes and what reads it, the largest first.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

_descending = partial(torch.argsort, dim=-1, descending=True, stable=True)


@torch.no_grad()
def order_by_magnitude(net: nn.Module, heads: int, layers: int) -> None:
    """Permute the parameters of a BERT classifier in place."""
    values = dict(net.named_parameters())

    def permute(name: str, rows: Tensor | None = None, columns: Tensor | None = None) -> None:
        weight = values[f"{name}.weight"]
        if rows is not None:
            weight.copy_(weight[rows])
            if f"{name}.bias" in values:
                values[f"{name}.bias"].copy_(values[f"{name}.bias"][rows])
        if columns is not None:
            weight.copy_(weight[:, columns])

    readers, writers, norms = [], [], ["bert.embeddings.LayerNorm"]
    for layer in (f"bert.encoder.layer.{i}" for i in range(layers)):
        trio = [f"{layer}.attention.self.{name}" for name in ("query", "key", "value")]
        out, inner = f"{layer}.attention.output.dense", f"{layer}.intermediate.dense"
        q, k, v = (values[f"{name}.weight"].unflatten(0, (heads, -1)).norm(dim=2) for name in trio)
        v = v * values[f"{out}.weight"].unflatten(1, (heads, -1)).norm(dim=0)
        whole = _descending((q * k).norm(dim=1) * v.norm(dim=1))
        for name, strength in zip(trio, (q * k, q * k, v), strict=True):
            permute(name, rows=_rows(strength, whole))
        permute(out, columns=_rows(v, whole))
        ends = values[f"{inner}.weight"].norm(dim=1), values[f"{layer}.output.dense.weight"]
        neurons = _descending(ends[0] * ends[1].norm(dim=0))
        permute(inner, rows=neurons)
        permute(f"{layer}.output.dense", columns=neurons)
        readers += [*trio, inner]
        writers += [out, f"{layer}.output.dense"]
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    read = torch.stack([values[f"{name}.weight"].square().sum(0) for name in readers]).sum(0)
    gain = torch.stack([values[f"{name}.weight"].square() for name in norms]).mean(0)
    order = _descending(gain * read)
    for name in ("word", "position", "token_type"):
        permute(f"bert.embeddings.{name}_embeddings", columns=order)
    for name in [*readers, "bert.pooler.dense"]:
        permute(name, columns=order)
    for name in [*writers, *norms]:
        permute(name, rows=order)
    pooled = _descending(values["bert.pooler.dense.weight"].norm(dim=1))  # coordinates of its own
    permute("bert.pooler.dense", rows=pooled)
    permute("classifier", columns=pooled)


def _rows(strength: Tensor, whole: Tensor) -> Tensor:
    """Rows of heads (heads, rows) sorted inside each head, and the heads in the order `whole`."""
    inside = _descending(strength)[whole]
    return (inside + whole[:, None] * strength.shape[1]).flatten()
