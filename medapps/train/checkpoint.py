"""Checkpoints: the state of a training between two steps, from which it continues bit for bit.

Written as a saved noun (`store.writing`), so the old one stays until the new one is complete;
arrays stream from the tables without a second copy. Random numbers are a function of counters, so
counters are all that is kept of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from medapps.arrays import Blocks, bfloat16, forget, open_arrays
from medapps.config import flat
from medapps.errors import MedappsError
from medapps.store import MANIFEST, REPLACE, read_manifest, writing
from medapps.train.tables import as_numpy, as_tensor

MACHINE = ("hardware.threads", "hardware.checkpoint_seconds")
"""Settings that may differ between the parts of one training."""


@dataclass
class Counters:
    """Where a training stands; everything about it that is not in a table."""

    epoch: int = 0
    step: int = 0
    """Next step within the epoch."""
    count: int = 0
    """Updates done."""
    w3: float = 1.0
    best_mrr: float = -1.0
    best_epoch: int = 0
    waited: int = 0
    """Validations since the best one."""
    loss_sum: float = 0.0
    """Losses seen in this epoch, and how many."""
    loss_count: int = 0
    seconds: float = 0.0
    """Time spent in training so far."""


def save_checkpoint(
    folder: Path, tensors: dict[str, Tensor], counters: Counters, identity: dict[str, Any]
) -> None:
    """Replace the checkpoint in `folder` in one step."""
    with writing(folder, kind="checkpoint", provenance=REPLACE) as draft:
        arrays: dict[str, np.ndarray | Blocks] = {}
        for name, tensor in tensors.items():
            array = as_numpy(tensor)
            arrays[name] = bfloat16(array) if array.dtype == np.uint16 else array
        draft.arrays("state.safetensors", arrays)
        draft.about = {"counters": asdict(counters), "identity": identity}


def has_checkpoint(folder: Path) -> bool:
    """Is there something to resume from?"""
    folder = Path(folder)
    return (folder / MANIFEST).exists() or (folder.parent / f".{folder.name}.old").exists()


def load_checkpoint(folder: Path, tensors: dict[str, Tensor], identity: dict[str, Any]) -> Counters:
    """Fill `tensors` in place and return the counters; refuses the state of another training."""
    manifest = read_manifest(folder, kind="checkpoint")
    was = manifest.about["identity"]
    check_identity(was, identity, folder)
    arrays = open_arrays(Path(folder) / "state.safetensors")
    for name, tensor in tensors.items():
        if name not in arrays or arrays[name].shape != tuple(tensor.shape):
            raise MedappsError(f"The checkpoint {folder} holds no {name} of this training's size.")
        for first in range(0, len(tensor), 65536):  # in pieces: no second copy of a large table
            tensor[first : first + 65536] = as_tensor(arrays[name][first : first + 65536])
            forget(arrays[name])
            forget(as_numpy(tensor))
    return Counters(**manifest.about["counters"])


def check_identity(was: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """Refuse the checkpoint of another graph, seed or config."""
    for key in ("graph", "seed"):
        if was[key] != now[key]:
            raise MedappsError(
                f"{folder} is a checkpoint of another {key}: {was[key]!r}, not {now[key]!r}.",
                fix="Leave out --resume to start anew.",
            )
    before = flat(was["config"])
    changed = [
        f"{key}={before.get(key)!r}, now {value!r}"
        for key, value in flat(now["config"]).items()
        if key not in MACHINE and before.get(key) != value
    ]
    if changed:
        raise MedappsError(
            f"The checkpoint {folder} was made with another config: {'; '.join(changed)}.",
            fix="Give the same config, or leave out --resume to start anew.",
        )
