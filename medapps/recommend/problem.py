"""Problem: one recommendation problem, prepared once and the same for every method."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from medapps.errors import MedappsError
from medapps.graph.ids import IdMap
from medapps.graph.interactions import Interactions, PurchaseSplit
from medapps.graph.split import digest_arrays
from medapps.recommend.config import RecommendConfig
from medapps.recommend.known_pairs import KnownPairs, draw_candidates, free_items

CANDIDATE_SEED = 20170403


@dataclass(frozen=True)
class Problem:
    """Users, items, who is trained and tested on what, and the sampled candidates."""

    users: IdMap
    items: IdMap
    split: PurchaseSplit
    candidates: np.ndarray  # (tests, count) int32: negatives of the sampled protocol
    own_candidates: bool  # shipped with the data
    notes: dict[str, int]

    @cached_property
    def trained(self) -> KnownPairs:
        """Training pairs: what training and validation regard as taken."""
        return self._pairs(self.split.train)

    @cached_property
    def seen(self) -> KnownPairs:
        """Training and validation pairs: what is removed from a test user's list."""
        return self._pairs(np.concatenate([self.split.train, self.split.valid]))

    @cached_property
    def unknown(self) -> np.ndarray:
        """Users without any training interaction, (users,) bool."""
        return self.trained.counts() == 0

    @cached_property
    def digest(self) -> str:
        """Changes when any user, item, part or candidate does."""
        own = np.frombuffer(self.split.digest.encode(), np.uint8)
        return digest_arrays(own, self.candidates)

    def _pairs(self, rows: np.ndarray) -> KnownPairs:
        return KnownPairs.build(rows[:, 0], rows[:, 1], len(self.users), len(self.items))

    def segments(self, few: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Test rows by kind of user: all with training interactions, few of them, none."""
        user = self.split.test[:, 0]
        count = self.trained.counts()[user]
        parts = {"full": count > 0}
        parts |= {f"few{k}": (count > 0) & (count <= k) for k in few}
        return parts | {"cold": count == 0}

    def split_table(self) -> pl.DataFrame:
        """Every interaction with its part, by name."""
        parts = {"train": self.split.train, "valid": self.split.valid, "test": self.split.test}
        frames = [
            pl.DataFrame(
                {"user": self.users.names(rows[:, 0]), "item": self.items.names(rows[:, 1])}
            ).with_columns(split=pl.lit(name))
            for name, rows in parts.items()
        ]
        return pl.concat(frames)

    def candidate_table(self) -> pl.DataFrame:
        """Test item and negatives of every test row, by name."""
        test = self.split.test
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
    interactions: Path | pl.DataFrame,
    config: RecommendConfig,
    negatives: pl.DataFrame | None = None,
) -> Problem:
    """Check and split the interactions; `negatives` (user, item, negatives) come with the data."""
    table = Interactions.of(
        interactions, core=config.core, bad_ratings=config.bad_ratings, own_split=config.own_split
    )
    split = table.split(config.cold_share)
    notes = dict(table.notes)
    if config.test_users is not None and config.test_users < len(split.test):
        notes["test_users_before_sampling"] = len(split.test)
        split = sampled_tests(split, config.test_users)
    if config.list_length > len(table.items):
        raise MedappsError(
            f"Lists of {config.list_length} items are wanted, "
            f"the catalogue has {len(table.items)}.",
            fix=f"--set recommend.list_length={len(table.items)}",
        )
    trained_items = np.bincount(split.train[:, 1], minlength=len(table.items)) > 0
    notes["items_without_training"] = int((~trained_items).sum())
    notes["users_with_one_interaction"] = int((np.bincount(table.user) == 1).sum())
    own = None
    if negatives is not None:
        own = _own_candidates(negatives, split.test, table.users, table.items)
    if own is not None:
        candidates = own
    else:
        every = KnownPairs.build(table.user, table.item, len(table.users), len(table.items))
        user, item = split.test[:, 0], split.test[:, 1]
        count = min(config.sampled_negatives, max(int(free_items(every, user, item).min()), 1))
        candidates = draw_candidates(
            every, user, item, count, np.random.default_rng(CANDIDATE_SEED)
        )
    notes["sampled_negatives"] = candidates.shape[1]
    return Problem(table.users, table.items, split, candidates, own is not None, notes)


def sampled_tests(split: PurchaseSplit, count: int) -> PurchaseSplit:
    """The same split with only some of its test rows; the same ones for every method."""
    draws = np.random.default_rng(CANDIDATE_SEED)
    test = split.test[np.sort(draws.choice(len(split.test), count, replace=False))]
    own = np.frombuffer(split.digest.encode(), np.uint8)
    return replace(split, test=test, digest=digest_arrays(own, test))


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
