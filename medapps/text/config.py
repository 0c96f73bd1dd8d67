"""Every choice of a training on text; needs no torch to be read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from medapps.config import Config, Count, Dim, Positive, Size, Weight

ONCE = ("med", "hat")
"""Methods that train all widths in one training."""
EACH = ("dt", "bkd", "pkd")
"""Methods that train each width alone."""
METHODS = (*ONCE, *EACH, "ext")
Widths = Annotated[
    tuple[Dim, ...], Field(min_length=1), AfterValidator(lambda given: tuple(sorted({*given})))
]


class MechanismConfig(Config):
    """The three mechanisms of MED on logits, under the names that they have on graphs."""

    loss: Literal["pairs", "examples"] = "pairs"
    """pairs: every (sentence, class) is a triple, by the loss of the graphs (the paper); examples:
    cross-entropy, weighted per sentence. Regression always has the latter, with squared errors.
    """
    ml_down: Weight = 1.0
    """Mutual learning, the larger neighbour teaching the smaller; 0 switches it off."""
    ml_up: Weight = 1.0
    """Mutual learning, the smaller neighbour teaching the larger; 0 switches it off."""
    distil: Weight = 0.0
    """How strongly the full width teaches the classes of a sentence to all others; no part of the
    paper's loss.
    """
    positive_weights: Literal["uniform", "prob"] = "prob"
    """Evolution: how the next narrower model's logit of the true class weighs a sentence."""
    positive_temperature: Weight = 1.0
    """w1."""
    negative_weights: Literal["own", "smaller", "uniform"] = "smaller"
    """Evolution: whose logits weigh the other classes."""
    temperature: Weight = 1.0
    """w2."""
    dlw: Literal["off", "fixed"] = "fixed"
    """Loss weight by width: none, or exp(w3 d_i/d_n)."""
    w3: float = Field(default=1.0, ge=-10.0, le=10.0)
    """Fixed: learned by the same loss it only ever falls, which undoes the mechanism."""


class TeachConfig(Config):
    """Distillation from the full width, trained alone (bkd, pkd)."""

    temperature: Positive = 2.0
    """T: softens both distributions."""
    weight: Weight = 1.0
    """Weight of the soft part, beside the hard loss."""
    patient: Weight = 10.0
    """pkd: weight of the distance between the layers' normalised first tokens."""


class TextConfig(Config):
    """How a language model is fine-tuned."""

    widths: Widths = (48, 96, 192, 384)
    """Ascending widths of the hidden layers; each is a model of its own."""
    order: Literal["none", "magnitude"] = "magnitude"
    """Move the coordinates, heads and neurons with the largest weights to the front first."""
    epochs: Count = 3
    """Epochs of a training."""
    steps: Count | None = None
    """Updates, instead of epochs."""
    batch: Size = 32
    """Sentences per update."""
    lr: Positive = 2e-4
    """Highest learning rate, after the warm-up; narrow widths begin almost anew: long steps."""
    warmup: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Part of the training in which the learning rate rises."""
    weight_decay: Weight = 0.01
    """Decoupled decay of matrices."""
    clip: Positive = 1.0
    """Longest gradient."""
    max_length: int = Field(default=128, ge=4, le=512)
    """Tokens of a sentence or pair; what is longer is cut."""
    checkpoint_seconds: Positive = 300.0
    """Time between two states to resume from."""
    med: MechanismConfig = Field(default_factory=MechanismConfig)
    """The mechanisms of MED."""
    teach: TeachConfig = Field(default_factory=TeachConfig)
    """The distilled baselines."""

    def recipe(self, method: str, widths: tuple[int, ...]) -> dict[str, Any]:
        """The settings that a training by `method` of `widths` depends on."""
        plain = self.plain() | {"widths": list(widths), "method": method}
        unused = {"checkpoint_seconds"} | ({"med"} if method != "med" else set())
        unused |= {"teach"} if method not in ("bkd", "pkd") else set()
        return {key: value for key, value in plain.items() if key not in unused}


class TextSettings(Config):
    """The section that a config file may have."""

    text: TextConfig = Field(default_factory=TextConfig)
    """Fine-tuning a language model."""
