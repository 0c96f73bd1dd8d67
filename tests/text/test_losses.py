"""The graph engine's loss on logits equals its formula, written out with autograd."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import huber_loss, softplus

from medapps.text.config import MechanismConfig, TeachConfig
from medapps.text.losses import each_loss, med_loss, patient_loss, plain_loss, taught_loss

WIDTHS = (12, 16, 32)


def naive(logits, labels, config):
    """EI, ML, DLW over pairs of sentence and class, as in the paper."""
    total, before = 0.0, None
    _, batch, classes = logits.shape
    for i, width in enumerate(WIDTHS):
        true = torch.stack([logits[i, b, labels[b]] for b in range(batch)])
        rest = [[logits[i, b, c] for c in range(classes) if c != labels[b]] for b in range(batch)]
        rest = torch.stack([torch.stack(row) for row in rest])
        p = torch.full_like(true, 1 / batch)
        w = torch.full_like(rest, 1 / rest.numel())
        if before is not None:
            p = torch.softmax(config.positive_temperature * torch.sigmoid(-before[0]), 0).detach()
            flat = torch.softmax(config.temperature * before[1].flatten(), 0)
            w = flat.view_as(rest).detach()
            for one, other in zip(before, (true, rest), strict=True):
                total = total + config.ml_down * huber_loss(one, other.detach())
                total = total + config.ml_up * huber_loss(one.detach(), other)
        ei = (p * softplus(-true)).sum() + (w * softplus(rest)).sum()
        total = total + torch.exp(torch.tensor(config.w3 * width / 32)) * ei
        before = true, rest
    return total


@pytest.mark.parametrize("classes", [2, 4])
def test_engine_on_logits_is_the_formula(classes):
    torch.manual_seed(1)
    logits = (2 * torch.randn(3, 7, classes, dtype=torch.float64)).requires_grad_()
    labels = torch.randint(classes, (7,))
    config = MechanismConfig(ml_down=0.7, ml_up=0.4, positive_temperature=1.3, temperature=0.6)
    ours = med_loss(list(logits), labels, WIDTHS, config)
    truth = naive(logits, labels, config)
    assert torch.isclose(ours, truth, atol=1e-12)
    grads = [torch.autograd.grad(value, logits)[0] for value in (ours, truth)]
    assert torch.allclose(*grads, atol=1e-12)


def test_full_width_teaches_by_the_divergence_of_classes():
    torch.manual_seed(2)
    logits = torch.randn(3, 5, 4, dtype=torch.float64).requires_grad_()
    labels = torch.randint(4, (5,))
    off = MechanismConfig(dlw="off")
    on = off.model_copy(update={"distil": 2.0})
    extra = med_loss(list(logits), labels, WIDTHS, on) - med_loss(list(logits), labels, WIDTHS, off)
    target = logits[-1].detach().softmax(1)
    logs = logits[:-1].log_softmax(2)
    truth = 2.0 * (target * (target.log() - logs)).sum((1, 2)).sum() / 5
    assert torch.isclose(extra, truth)
    grads = [torch.autograd.grad(value, logits)[0] for value in (extra, truth)]
    assert torch.allclose(*grads, atol=1e-12)


def test_regression_weighs_what_the_smaller_width_misses():
    labels = torch.tensor([0.0, 5.0])
    logits = torch.tensor([[[0.0], [0.0]], [[1.0], [1.0]]]).requires_grad_()
    config = MechanismConfig(ml_down=0, ml_up=0, dlw="off")
    value = med_loss(list(logits), labels, (16, 32), config)
    p = torch.softmax(torch.sigmoid(torch.tensor([0.0, 5.0])), 0)
    assert torch.isclose(value, 12.5 + p[0] * 1 + p[1] * 16)
    (grad,) = torch.autograd.grad(value, logits)
    assert torch.allclose(grad[1, :, 0], torch.stack([2 * p[0], -8 * p[1]]))


def test_without_mechanisms_examples_are_the_sum_of_plain_losses():
    torch.manual_seed(3)
    logits, labels = torch.randn(3, 6, 3), torch.randint(3, (6,))
    config = MechanismConfig(
        loss="examples", ml_down=0, ml_up=0, dlw="off", positive_weights="uniform"
    )
    value = med_loss(list(logits), labels, WIDTHS, config)
    assert torch.isclose(value, sum(plain_loss(one, labels) for one in logits))
    assert torch.isclose(each_loss(logits[0], labels).mean(), plain_loss(logits[0], labels))


def test_a_student_that_equals_its_teacher_has_only_the_hard_loss():
    torch.manual_seed(4)
    logits, labels = torch.randn(6, 3), torch.randint(3, (6,))
    config = TeachConfig(temperature=3.0)
    same = taught_loss(logits, labels, logits, config)
    assert torch.isclose(same, plain_loss(logits, labels), atol=1e-6)
    other = torch.randn(6, 3)
    soft = taught_loss(logits, labels, other, config) - plain_loss(logits, labels)
    p, q = (other / 3).softmax(1), (logits / 3).softmax(1)
    assert torch.isclose(soft, 9 * (p * (p / q).log()).sum() / 6, atol=1e-5)
    tokens = torch.randn(4, 6, 8)
    assert patient_loss(3 * tokens[..., :5], tokens) < 1e-10  # lengths do not count
    assert patient_loss(-tokens, tokens) == pytest.approx(4.0)
