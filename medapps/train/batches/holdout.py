"""Which triples a training learns from, and which it is validated on."""

from __future__ import annotations

import numpy as np

from medapps.graph.graph import Graph
from medapps.train.config import MedConfig
from medapps.train.random_streams import HOLDOUT, stream


def split_validation(graph: Graph, config: MedConfig, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and validation triples; a part of the training triples is held out where early
    stopping needs it.
    """
    train, valid = graph.train, np.asarray(graph.valid)
    if not len(valid) and config.validation.patience is not None:
        held = max(
            1, min(config.validation.triples, round(config.validation.fraction * len(train)))
        )
        chosen = stream(seed, HOLDOUT).choice(len(train), held, replace=False)
        keep = np.ones(len(train), bool)
        keep[chosen] = False
        return train[keep], train[np.sort(chosen)]
    if len(valid) > config.validation.triples:
        chosen = stream(seed, HOLDOUT).choice(len(valid), config.validation.triples, replace=False)
        valid = valid[np.sort(chosen)]
    return train, valid
