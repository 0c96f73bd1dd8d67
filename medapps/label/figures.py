"""Pictures of task results, drawn without a display."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def confusion_figure(classes: Sequence[str], matrix: np.ndarray) -> Figure:
    """Share of each true class that was predicted as each class."""
    from matplotlib.figure import Figure

    share = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    figure = Figure(figsize=(1.5 + 0.45 * len(classes), 1.2 + 0.45 * len(classes)), layout="tight")
    axes = figure.subplots()
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(classes)), classes, rotation=90)
    axes.set_yticks(range(len(classes)), classes)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    if len(classes) <= 20:
        for row, column in np.ndindex(*share.shape):
            shade = "white" if share[row, column] > 0.5 else "black"
            text = f"{share[row, column]:.2f}".lstrip("0")
            axes.text(column, row, text, ha="center", va="center", color=shade, fontsize=7)
    return figure


def calibration_figure(
    confidence: np.ndarray, accuracy: np.ndarray, users: np.ndarray, error: float
) -> Figure:
    """Accuracy over confidence; a calibrated model lies on the diagonal."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 4), layout="tight")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1)
    filled = users > 0
    axes.plot(confidence[filled], accuracy[filled], marker="o")
    axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    axes.set_title(f"calibration error {error:.3f}")
    return figure
