"""Which (user, item) pairs are known: one membership test and one sampler for all negatives."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from medapps.errors import MedappsError

BITMAP_BYTES = 512 << 20  # above this a sorted list of keys takes the place of the bitmap


@dataclass(frozen=True)
class KnownPairs:
    """The interactions of every user: one bit per pair, or sorted keys when that is smaller."""

    n_users: int
    n_items: int
    keys: np.ndarray  # (pairs,) int64, sorted, unique: user * n_items + item
    bits: np.ndarray | None = field(repr=False)  # (n_users, row_bytes) uint8, little bit order

    @staticmethod
    def build(
        users: np.ndarray, items: np.ndarray, n_users: int, n_items: int, bitmap: bool | None = None
    ) -> KnownPairs:
        keys = np.unique(users.astype(np.int64) * n_items + items)
        row_bytes = (n_items + 7) // 8
        if bitmap is None:
            bitmap = n_users * row_bytes <= BITMAP_BYTES
        bits = None
        if bitmap:
            flat = np.zeros(n_users * row_bytes, dtype=np.uint8)
            row, item = keys // n_items, keys % n_items
            place = row * row_bytes + item // 8  # sorted, so equal bytes stand together
            start = np.flatnonzero(np.r_[True, place[1:] != place[:-1]]) if len(place) else place
            if len(place):
                flat[place[start]] = np.bitwise_or.reduceat(
                    np.left_shift(np.uint8(1), (item % 8).astype(np.uint8)), start
                )
            bits = flat.reshape(n_users, row_bytes)
        return KnownPairs(n_users, n_items, keys, bits)

    def has(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """True where the pair is known; users and items broadcast."""
        if self.bits is not None:
            byte = self.bits.reshape(-1)[users.astype(np.int64) * self.bits.shape[1] + (items >> 3)]
            return (byte >> (items & 7).astype(np.uint8)) & 1 != 0
        wanted = users.astype(np.int64) * self.n_items + items
        if not len(self.keys):
            return np.zeros(wanted.shape, dtype=bool)
        spot = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return self.keys[spot] == wanted

    def counts(self) -> np.ndarray:
        """Number of known items of each user, (n_users,) int64."""
        return np.bincount(self.keys // self.n_items, minlength=self.n_users)

    def mask(self, users: np.ndarray) -> np.ndarray:
        """Known items of these users as booleans, (len(users), n_items)."""
        if self.bits is not None:
            rows = np.unpackbits(self.bits[users], axis=1, count=self.n_items, bitorder="little")
            return rows.view(bool)
        low = np.searchsorted(self.keys, users.astype(np.int64) * self.n_items)
        high = np.searchsorted(self.keys, (users.astype(np.int64) + 1) * self.n_items)
        size = high - low
        row = np.repeat(np.arange(len(users)), size)
        place = (
            np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size) + np.repeat(low, size)
        )
        out = np.zeros((len(users), self.n_items), dtype=bool)
        out[row, self.keys[place] % self.n_items] = True
        return out


def draw_negatives(
    known: KnownPairs, users: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Uniform items that each user is not known to have taken, (len(users), count) int32."""
    full = np.flatnonzero(known.counts()[np.unique(users)] >= known.n_items)
    if len(full):
        raise MedappsError(
            f"{len(full)} users took every one of the {known.n_items} items, so that no negative "
            "item can be drawn for them.",
            fix="remove these users or use a larger catalogue",
        )
    items = rng.integers(0, known.n_items, size=(len(users), count), dtype=np.int32)
    column = users.astype(np.int32)[:, None]
    bad = np.flatnonzero(known.has(column, items).reshape(-1))
    flat = items.reshape(-1)
    while len(bad):
        flat[bad] = rng.integers(0, known.n_items, size=len(bad), dtype=np.int32)
        bad = bad[known.has(users[bad // count].astype(np.int32), flat[bad])]
    return items


def free_items(known: KnownPairs, users: np.ndarray, positives: np.ndarray) -> np.ndarray:
    """How many items each user has neither taken nor as its positive, (len(users),)."""
    return known.n_items - known.counts()[users] - ~known.has(users, positives)


def draw_candidates(
    known: KnownPairs,
    users: np.ndarray,
    positives: np.ndarray,
    count: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Distinct unknown items per user other than the positive, (len(users), count) int32."""
    free = free_items(known, users, positives)
    if len(users) and free.min() < count:
        raise MedappsError(
            f"{count} distinct negatives are wanted, but a user has only {free.min()} items "
            f"that were not taken (catalogue: {known.n_items} items).",
            fix=f"--set recommend.sampled_negatives={max(int(free.min()), 0)}",
        )
    out = np.empty((len(users), count), dtype=np.int32)
    block = max(1, (1 << 25) // max(known.n_items, 1))
    for start in range(0, len(users), block):
        part = slice(start, start + block)
        out[part] = _distinct_block(known, users[part], positives[part], count, rng)
    return out


def _distinct_block(
    known: KnownPairs,
    users: np.ndarray,
    positives: np.ndarray,
    count: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """The `count` smallest of one random number per free item: a uniform draw without repeats."""
    lottery = rng.random((len(users), known.n_items), dtype=np.float32)
    lottery[known.mask(users)] = np.inf
    lottery[np.arange(len(users)), positives] = np.inf
    if count < known.n_items:
        picked = np.argpartition(lottery, count - 1, axis=1)[:, :count]
    else:
        picked = np.argsort(lottery, axis=1)[:, :count]
    order = np.argsort(np.take_along_axis(lottery, picked, axis=1), axis=1)
    return np.take_along_axis(picked, order, axis=1).astype(np.int32)
