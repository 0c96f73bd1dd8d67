"""Problem: a split of purchases as sparse matrices, over all users of the shop and its graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy.sparse import csr_matrix

from medapps.graph.ids import IdMap
from medapps.graph.split import COLD_TEST, COLD_VALID, TEST, TRAIN, VALID, PurchaseSplit


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
    digest: str = ""
    """Of the split."""

    @property
    def known(self) -> csr_matrix:
        """Training and validation purchases: what a tested user has."""
        return csr_matrix(self.train + self.valid)


def problem_of(split: PurchaseSplit, graph_users: pl.Series | None = None) -> Problem:
    """The matrices of a split; users of the graph without purchases have empty rows."""
    names = split.users.names()
    if graph_users is not None and graph_users.dtype == names.dtype:
        names = pl.concat([names, graph_users.rename(names.name)]).unique()
    users = IdMap.of(names)
    row = users.ids(split.users.names())

    def matrix(part: int) -> csr_matrix:
        pairs = split.rows(part)
        ones = np.ones(len(pairs), np.float32)
        shape = (len(users), len(split.items))
        return csr_matrix((ones, (row[pairs[:, 0]], pairs[:, 1])), shape)

    return Problem(
        users=users,
        items=split.items,
        train=matrix(TRAIN),
        valid=matrix(VALID),
        test=matrix(TEST),
        cold_valid=matrix(COLD_VALID),
        cold_test=matrix(COLD_TEST),
        digest=split.digest,
    )
