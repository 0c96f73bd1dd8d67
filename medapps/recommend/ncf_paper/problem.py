"""Problem: one recommendation problem, prepared once and the same for every method."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from medapps.errors import MedappsError
from medapps.graph.ids import IdMap
from medapps.graph.split import (
    COLD_TEST,
    TEST,
    TRAIN,
    VALID,
    PurchaseSplit,
    digest_arrays,
    name_hash,
)
from medapps.recommend.config import RecommendConfig
from medapps.recommend.ncf_paper.known_pairs import KnownPairs, draw_candidates, free_items

CANDIDATE_SEED = 20170403


@dataclass(frozen=True)
class Problem:
    """Users, items, who is trained and tested on what, and the sampled candidates."""

    users: IdMap
    items: IdMap
    train: np.ndarray  # (n, 2) int32
    valid: np.ndarray  # (v, 2) int32
    test: np.ndarray  # (t, 2) int32, ascending; cold users too
    candidates: np.ndarray  # (tests, count) int32: negatives of the sampled protocol
    own_candidates: bool  # shipped with the data
    notes: dict[str, int]

    @cached_property
    def trained(self) -> KnownPairs:
        """Training pairs: what training and validation regard as taken."""
        return self._pairs(self.train)

    @cached_property
    def seen(self) -> KnownPairs:
        """Training and validation pairs: what is removed from a test user's list."""
        return self._pairs(np.concatenate([self.train, self.valid]))

    @cached_property
    def unknown(self) -> np.ndarray:
        """Users without any training interaction, (users,) bool."""
        return self.trained.counts() == 0

    @cached_property
    def digest(self) -> str:
        """Changes when any user, item, part or candidate does."""
        parts = self.train, self.valid, self.test, self.candidates
        return digest_arrays(name_hash(self.users), name_hash(self.items), *parts)

    def _pairs(self, rows: np.ndarray) -> KnownPairs:
        return KnownPairs.build(rows[:, 0], rows[:, 1], len(self.users), len(self.items))

    def segments(self, few: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Test rows by kind of user: all with training interactions, few of them, none."""
        user = self.test[:, 0]
        count = self.trained.counts()[user]
        parts = {"full": count > 0}
        parts |= {f"few{k}": (count > 0) & (count <= k) for k in few}
        return parts | {"cold": count == 0}

    def split_table(self) -> pl.DataFrame:
        """Every interaction with its part, by name."""
        parts = {"train": self.train, "valid": self.valid, "test": self.test}
        frames = [
            pl.DataFrame(
                {"user": self.users.names(rows[:, 0]), "item": self.items.names(rows[:, 1])}
            ).with_columns(split=pl.lit(name))
            for name, rows in parts.items()
        ]
        return pl.concat(frames)

    def candidate_table(self) -> pl.DataFrame:
        """Test item and negatives of every test row, by name."""
        test = self.test
        names = self.items.names(self.candidates.reshape(-1)).to_list()
        width = self.candidates.shape[1]
        return pl.DataFrame(
            {
                "user": self.users.names(test[:, 0]),
                "item": self.items.names(test[:, 1]),
                "negatives": [names[i : i + width] for i in range(0, len(names), width)],
            }
        )


def prepare(
    split: PurchaseSplit, config: RecommendConfig, negatives: pl.DataFrame | None = None
) -> Problem:
    """The pairs of a split and their candidates; `negatives` (user, item, negatives) come with the
    data.
    """
    notes, items = dict(split.notes), len(split.items)
    train, valid = split.rows(TRAIN), split.rows(VALID)
    test = split.rows(TEST, COLD_TEST)
    test = test[np.lexsort((test[:, 1], test[:, 0]))]
    if config.test_users is not None and config.test_users < len(test):
        notes["test_users_before_sampling"] = len(test)
        draws = np.random.default_rng(CANDIDATE_SEED)
        test = test[np.sort(draws.choice(len(test), config.test_users, replace=False))]
    check_list_length(split, config)
    notes["items_without_training"] = int((np.bincount(train[:, 1], minlength=items) == 0).sum())
    notes["users_with_one_interaction"] = int((np.bincount(split.pairs[:, 0]) == 1).sum())
    own = None
    if negatives is not None:
        own = _own_candidates(negatives, test, split.users, split.items)
    candidates = _drawn(split, test, config.sampled_negatives) if own is None else own
    notes["sampled_negatives"] = candidates.shape[1]
    parts = train, valid, test
    return Problem(split.users, split.items, *parts, candidates, own is not None, notes)


def check_list_length(split: PurchaseSplit, config: RecommendConfig) -> None:
    """Refuse lists that are longer than the catalogue."""
    items = len(split.items)
    if config.list_length > items:
        raise MedappsError(
            f"Lists of {config.list_length} items are wanted, the catalogue has {items}.",
            fix=f"--set recommend.list_length={items}",
        )


def _drawn(split: PurchaseSplit, test: np.ndarray, count: int) -> np.ndarray:
    """Negatives (tests, count) that their user never took."""
    user, item = split.pairs.T
    every = KnownPairs.build(user, item, len(split.users), len(split.items))
    free = int(free_items(every, test[:, 0], test[:, 1]).min())
    draws = np.random.default_rng(CANDIDATE_SEED)
    return draw_candidates(every, test[:, 0], test[:, 1], min(count, max(free, 1)), draws)


def _own_candidates(
    frame: pl.DataFrame, test: np.ndarray, users: IdMap, items: IdMap
) -> np.ndarray | None:
    """A data set's negatives in the order of the test rows, or None when they do not fit them."""
    missing = {"user", "item", "negatives"} - set(frame.columns)
    if missing:
        raise MedappsError(
            f"The test negatives have no column {', '.join(sorted(missing))}.",
            fix="They need user, item and negatives (a list of items).",
        )
    counts = frame["negatives"].list.len()
    if counts.n_unique() != 1:
        raise MedappsError("The test negatives are lists of different lengths.")
    width = int(counts[0])
    user, item = users.ids(frame["user"]), items.ids(frame["item"])
    flat = items.ids(frame["negatives"].explode(empty_as_null=True)).reshape(-1, width)
    usable = (user >= 0) & (item >= 0) & (flat >= 0).all(1)
    key = user[usable].astype(np.int64) * len(items) + item[usable]
    wanted = test[:, 0].astype(np.int64) * len(items) + test[:, 1]
    if not len(key) or not np.isin(wanted, key).all():
        return None
    order = np.argsort(key, kind="stable")
    place = order[np.searchsorted(key[order], wanted)]
    return flat[usable][place].astype(np.int32)
