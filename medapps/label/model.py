"""LabelModel: a trained labeller that predicts without its training data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from medapps.arrays import open_arrays
from medapps.crop.service import Scaling, Source, finite_vectors
from medapps.errors import MedappsError
from medapps.store import NEW, Provenance, read_manifest, usable, writing

WEIGHTS = ("w1", "b1", "w2", "b2")
HIDDEN_NUMBERS = 2**25
"""Numbers of hidden layers that are held at once."""


def mlp_probabilities(
    x: np.ndarray, w1: np.ndarray, b1: np.ndarray, w2: np.ndarray, b2: np.ndarray
) -> np.ndarray:
    """Class probabilities (users, classes) of a two-layer network."""
    rows = max(1, HIDDEN_NUMBERS // w1.shape[1])
    parts = [x[start : start + rows] for start in range(0, max(1, len(x)), rows)]
    logits = np.concatenate([np.maximum(part @ w1 + b1, 0) @ w2 + b2 for part in parts])
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


@dataclass(frozen=True)
class LabelModel:
    """Two-layer MLPs of several seeds; their mean probability is the prediction."""

    column: str
    classes: tuple[str, ...]
    dim: int
    method: str
    scaling: Scaling
    weights: dict[str, np.ndarray]  # w1 (seeds, dim + 1, hidden), b1, w2, b2

    def probabilities(self, source: Source, users: pl.Series) -> tuple[np.ndarray, np.ndarray]:
        """Class probabilities (users, classes), and known bool (users,)."""
        if source.dim != self.dim:
            raise MedappsError(
                f"The labeller was trained on {self.dim} numbers per user, "
                f"the vectors given have {source.dim}.",
                fix=f"Use a crop with --dim {self.dim}.",
            )
        values, known = finite_vectors(source, users)
        x = self.scaling.apply(values, known)
        each = zip(*(self.weights[name] for name in WEIGHTS), strict=True)
        return np.mean([mlp_probabilities(x, *weights) for weights in each], axis=0), known

    def predict(self, source: Source, users: pl.Series) -> pl.DataFrame:
        """One row per user: label, probability, whether it is in the graph, and p_<class>.

        The label has the name of its column, or label_<column> where another column is called so.
        """
        if users.null_count():
            raise MedappsError("The users to label include empty names.")
        probability, known = self.probabilities(source, users)
        best = probability.argmax(1)
        label = pl.Series(np.array(self.classes)[best].tolist(), dtype=pl.String)
        others = {"probability": probability.max(1), "in_graph": known}
        others |= {f"p_{name}": probability[:, i] for i, name in enumerate(self.classes)}
        name = f"label_{self.column}" if self.column in others else self.column
        return pl.DataFrame({"user": users, name: label} | others)

    def save(self, folder: Path, provenance: Provenance = NEW) -> None:
        """Write the model as a folder."""
        with writing(folder, kind="labeller", provenance=provenance) as draft:
            draft.arrays(
                "model.safetensors",
                self.weights | {"mean": self.scaling.mean, "deviation": self.scaling.deviation},
            )
            draft.about = {
                "column": self.column,
                "classes": list(self.classes),
                "dim": self.dim,
                "method": self.method,
            }

    @classmethod
    @usable("labeller")
    def load(cls, folder: Path) -> LabelModel:
        """Read a model back."""
        about = read_manifest(folder, kind="labeller").about
        arrays = open_arrays(Path(folder) / "model.safetensors")
        return cls(
            about["column"],
            tuple(about["classes"]),
            about["dim"],
            about["method"],
            Scaling(np.asarray(arrays["mean"]), np.asarray(arrays["deviation"])),
            {name: np.asarray(arrays[name]) for name in WEIGHTS},
        )
