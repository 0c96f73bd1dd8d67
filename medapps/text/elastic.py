"""Elastic BERT: every width is the leading part of each matrix of one network.

Width d keeps the first d coordinates of every embedding, LayerNorm (whose mean and variance are
then over d numbers), pooler and classifier, 4 d neurons of every feed-forward layer and, of the
attention, the first ceil(d / 32) heads of 32. Where d is no multiple of 32 its heads are narrower:
48 keeps 24 of the 32 rows of two heads. So no row of a trained head ever moves to another head, and
what a width keeps is a part of what every larger one keeps.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import embedding
from transformers import BertConfig, BertForSequenceClassification

from medapps.errors import MedappsError

WORDS = "bert.embeddings.word_embeddings.weight"


def narrowed(config: BertConfig, width: int) -> BertConfig:
    """The config of a BERT of this width."""
    full = config.hidden_size
    size = full // config.num_attention_heads
    heads = -(-width // size)
    if not 0 < width <= full or width % heads:
        problem = f"Width {width} does not fit a model of {full} with heads of {size}."
        raise MedappsError(problem, fix=f"Take a multiple of {size} up to {full}.")
    plain = config.to_dict()
    plain |= {"hidden_size": width, "num_attention_heads": heads}
    plain["intermediate_size"] = width * config.intermediate_size // full
    return BertConfig(**plain)


def part(name: str, whole: Tensor, config: BertConfig, narrow: BertConfig) -> Tensor:
    """What a narrower model keeps of a parameter: a view, but for heads with fewer rows."""
    width, heads = narrow.hidden_size, narrow.num_attention_heads
    split = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    kept = slice(heads), slice(width // heads)
    if ".attention.self." in name:  # query, key, value
        rows = whole.view(*split, *whole.shape[1:])[kept]
        return (rows[..., :width] if whole.dim() == 2 else rows).flatten(0, 1)
    if name.endswith(".attention.output.dense.weight"):
        return whole.view(-1, *split)[(slice(width), *kept)].flatten(1, 2)
    inner = {config.hidden_size: width, config.intermediate_size: narrow.intermediate_size}
    counted = "_embeddings" in name or name.startswith("classifier")  # words, positions, classes
    for axis in range(int(counted), whole.dim()):
        whole = whole.narrow(axis, 0, inner[whole.shape[axis]])
    return whole


class Elastic(nn.Module):
    """A BERT classifier that runs at several widths with shared parameters."""

    def __init__(self, net: BertForSequenceClassification, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.net = net
        self.widths = widths
        self.full = net.config.hidden_size
        self.templates = nn.ModuleDict()
        """Networks whose own parameters are never used."""
        for width in widths:
            if width != self.full:
                self.templates[str(width)] = _empty(narrowed(net.config, width))

    def forward(
        self, batch: Mapping[str, Tensor], widths: tuple[int, ...], *, tokens: bool = False
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Logits (B, C) per width and, if asked, first tokens (layers, B, d) per width."""
        rest = {name: value for name, value in batch.items() if name != "input_ids"}
        pad = self.net.config.pad_token_id
        words = embedding(batch["input_ids"], self.net.get_parameter(WORDS), pad)
        logits, firsts = [], []
        for width in widths:
            given = rest | {"inputs_embeds": words[..., :width], "output_hidden_states": tokens}
            if width == self.full:
                out = self.net(**given)
            else:
                kept = kept_of(self.net, narrowed(self.net.config, width))
                out = functional_call(self.templates[str(width)], kept, (), given)
            logits.append(out.logits)
            if tokens:
                firsts.append(torch.stack([layer[:, 0] for layer in out.hidden_states]))
        return logits, firsts


def kept_of(net: BertForSequenceClassification, narrow: BertConfig) -> dict[str, Tensor]:
    """The shared parameters as a width sees them."""
    return {name: part(name, p, net.config, narrow) for name, p in net.named_parameters()}


def submodel(net: BertForSequenceClassification, width: int) -> BertForSequenceClassification:
    """A model of its own with a copy of what a width keeps."""
    model = _empty(narrowed(net.config, width))
    model.load_state_dict(kept_of(net, model.config), strict=False)  # position_ids are no weights
    return model.train(net.training)


def _empty(config: BertConfig) -> BertForSequenceClassification:
    """A network whose values do not matter; draws no random numbers from the training's."""
    with torch.random.fork_rng(devices=[]):
        return BertForSequenceClassification(config)
