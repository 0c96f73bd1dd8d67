"""Widths inside one network: slices, exported models, order."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification

from medapps.errors import MedappsError
from medapps.text.data import encode
from medapps.text.elastic import Elastic, narrowed, part, submodel
from medapps.text.order import order_by_magnitude

WIDTHS = (12, 16, 32)


@pytest.fixture
def batch(net, mood, tiny_bert):
    from transformers import AutoTokenizer

    data = encode(AutoTokenizer.from_pretrained(tiny_bert), mood.dev, mood.labels(mood.dev), 32)
    return data.batch(torch.arange(20).numpy())


def test_the_full_width_is_the_network_itself(net, batch):
    (logits,), _ = Elastic(net, (32,)).eval()(batch, (32,))
    assert torch.allclose(logits, net(**batch).logits, atol=1e-6)


def test_exported_widths_equal_the_slices(net, batch, tmp_path):
    found, tokens = Elastic(net, WIDTHS).eval()(batch, WIDTHS, tokens=True)
    for width, logits, first in zip(WIDTHS, found, tokens, strict=True):
        submodel(net, width).save_pretrained(tmp_path)
        loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
        out = loaded(**batch, output_hidden_states=True)
        assert loaded.config.hidden_size == width
        assert torch.allclose(logits, out.logits, atol=1e-6)
        assert torch.allclose(first[-1], out.hidden_states[-1][:, 0], atol=1e-6)


def test_a_width_has_the_parameters_of_a_bert_of_that_width(net):
    for width, heads, inner in ((12, 2, 48), (16, 2, 64), (8, 1, 32)):
        config = narrowed(net.config, width)
        assert (config.num_attention_heads, config.intermediate_size) == (heads, inner)
        fresh = BertForSequenceClassification(config)
        assert submodel(net, width).num_parameters() == fresh.num_parameters()


def test_a_head_keeps_its_own_rows(net):
    """Width 12 has two heads of 6: rows 0-5 and 8-13 of four heads of 8."""
    rows = [*range(6), *range(8, 14)]
    name = "bert.encoder.layer.1.attention.self.key.weight"
    whole = net.get_parameter(name)
    assert torch.equal(part(name, whole, net.config, narrowed(net.config, 12)), whole[rows, :12])
    name = "bert.encoder.layer.1.attention.output.dense.weight"
    whole = net.get_parameter(name)
    assert torch.equal(part(name, whole, net.config, narrowed(net.config, 12)), whole[:12, rows])


def test_gradients_of_a_width_reach_only_what_it_keeps(net, batch):
    (logits,), _ = Elastic(net, (16,))(batch, (16,))
    logits.square().sum().backward()
    for name, value in net.named_parameters():
        assert value.grad is not None, name
        kept = part(name, value.grad, net.config, narrowed(net.config, 16))
        assert value.grad.norm() > 0 or name.endswith("key.bias"), name  # softmax ignores it
        assert torch.isclose(kept.norm(), value.grad.norm()), name


def test_order_changes_no_output_and_sorts_neurons(net, batch):
    before = net(**batch).logits
    narrow = submodel(net, 16).eval()(**batch).logits
    order_by_magnitude(net, 4, 2)
    assert torch.allclose(net(**batch).logits, before, atol=1e-5)
    assert not torch.allclose(submodel(net, 16).eval()(**batch).logits, narrow, atol=1e-3)
    inner = net.bert.encoder.layer[0].intermediate.dense.weight.norm(dim=1)
    outer = net.bert.encoder.layer[0].output.dense.weight.norm(dim=0)
    strength = inner * outer
    assert (strength[:-1] >= strength[1:] - 1e-5).all()


@pytest.mark.parametrize("width", [9, 33, 0, -8])
def test_a_width_that_does_not_fit_is_refused(net, width):
    with pytest.raises(MedappsError, match=f"Width {width} does not fit"):
        narrowed(net.config, width)
