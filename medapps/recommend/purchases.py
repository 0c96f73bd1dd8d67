"""Problem: purchases split once into training, validation and test, as sparse matrices.

Only the training purchases may enter a graph. Users are cold when all that they bought is withheld;
a fifth of them serves validation, the others are tested.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy.sparse import csr_matrix

from medapps.graph.ids import IdMap
from medapps.graph.split import leave_one_out, mix, name_hash

VALID_SHARE = 0.03
"""Part of the training purchases that may be held out for validation."""
VALID_LEAST = 2000
"""So many users validate where there are as many, however few purchases there are."""
COLD_VALID = 0.2
"""Part of the cold users that validates."""


@dataclass(frozen=True)
class Problem:
    """Who bought what, and what it is for; every matrix is (users, items), float32, ones."""

    users: IdMap
    items: IdMap
    train: csr_matrix
    valid: csr_matrix
    """Held-out purchases of users with training purchases."""
    test: csr_matrix
    cold_valid: csr_matrix
    """Purchases of the cold users that validate."""
    cold_test: csr_matrix

    @property
    def known(self) -> csr_matrix:
        """Training and validation purchases: what a tested user has and what a last fit takes."""
        return csr_matrix(self.train + self.valid)

    def train_table(self) -> pl.DataFrame:
        """The training purchases by name: user, item."""
        rows, columns = self.train.nonzero()
        return pl.DataFrame({"user": self.users.names(rows), "item": self.items.names(columns)})


def make_problem(
    interactions: pl.DataFrame,
    cold_share: float = 0.0,
    valid_share: float = VALID_SHARE,
    valid_least: int = VALID_LEAST,
) -> Problem:
    """Split a table `user, item[, timestamp][, split]` by names and times, never by row order."""
    frame = leave_one_out(interactions)
    users, items = IdMap.of(frame["user"]), IdMap.of(frame["item"])
    user, item = users.ids(frame["user"]), items.ids(frame["item"])
    part = frame["split"].to_numpy()
    lot = mix(name_hash(users))  # the same draw for everybody who splits by names
    tested = np.zeros(len(users), bool)
    tested[user[part == "test"]] = True
    cold = tested & (lot < np.uint64(int(cold_share * (2**64 - 1))))
    trains = cold & (lot < np.uint64(int(cold_share * COLD_VALID * (2**64 - 1))))
    validates = _draw(part == "valid", user, cold, lot, valid_share, valid_least)

    def matrix(rows: np.ndarray) -> csr_matrix:
        shape = (len(users), len(items))
        return csr_matrix((np.ones(rows.sum(), np.float32), (user[rows], item[rows])), shape)

    held = (part == "valid") & validates[user]
    return Problem(
        users,
        items,
        train=matrix((part != "test") & ~held & ~cold[user]),
        valid=matrix(held),
        test=matrix((part == "test") & ~cold[user]),
        cold_valid=matrix(trains[user]),
        cold_test=matrix((part == "test") & cold[user] & ~trains[user]),
    )


def _draw(
    offered: np.ndarray,
    user: np.ndarray,
    cold: np.ndarray,
    lot: np.ndarray,
    share: float,
    least: int,
) -> np.ndarray:
    """Which users validate, (users,) bool: as many as keep most purchases for training."""
    able = np.unique(user[offered & ~cold[user]])
    limit = max(least, int(share * (~cold[user]).sum()))
    chosen = able[np.argsort(mix(lot[able]), kind="stable")[:limit]]
    out = np.zeros(len(cold), bool)
    out[chosen] = True
    return out
