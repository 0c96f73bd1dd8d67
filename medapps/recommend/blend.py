"""The blend: a weighted sum of standardised parts, with weights chosen on held-out purchases.

Weights are chosen by ndcg@10 among candidates: the best few hundred items of every part and the
held-out ones. The best single part is taken first; another part is taken, or a weight changed, only
where the gain is above one standard error of the paired difference per user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from medapps.recommend.evaluation.metrics import hit_metrics, hits
from medapps.recommend.lists import PAIRS, Scores, mask_seen, standardise
from medapps.recommend.parts.kernels import best

K = 10
"""Weights are chosen by ndcg@K."""
LOW = np.float32(-1e9)
CANDIDATES = 100
"""Best items of each part that are compared."""
STEPS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0, 8.0)
"""Weights that are tried for a part, in terms of those that it joins."""
SHRINK = 500.0
"""Validation users at which a bucket's own weights count as much as the common ones."""
USERS = 4000
"""At most so many validation users are looked at."""


@dataclass(frozen=True)
class Candidates:
    """What the choice of weights looks at, for users (n,)."""

    scores: np.ndarray  # (parts, n, candidates) float32 z-scores, LOW at repeated items
    found: np.ndarray  # (n, candidates) bool: held-out purchases
    wanted: np.ndarray  # (n,) held-out purchases
    purchases: np.ndarray  # (n,) training purchases

    def total(self, weights: np.ndarray) -> np.ndarray:
        """Weighted sums (n, candidates) under weights (parts,) or (n, parts)."""
        rows = np.atleast_2d(weights.astype(np.float32))
        out = np.zeros(self.found.shape, np.float32)
        for part in np.flatnonzero(rows.any(0)).tolist():
            out += rows[:, part, None] * self.scores[part]
        return out

    def rewards(self, weights: np.ndarray) -> np.ndarray:
        """ndcg@10 of each user under weights (parts,) or (n, parts)."""
        return self.rewards_of(self.total(weights))

    def rewards_of(self, total: np.ndarray) -> np.ndarray:
        """ndcg@10 of each user under scores (n, candidates)."""
        ids = np.empty((len(total), K), np.int32)
        best(total, K, ids, np.empty((len(total), K), np.float32))
        found = np.take_along_axis(self.found, np.maximum(ids, 0), 1) & (ids >= 0)
        return hit_metrics(found, self.wanted, (K,))[f"ndcg_at_{K}"]

    def some(self, rows: np.ndarray) -> Candidates:
        """The same for some of the users."""
        scores = np.ascontiguousarray(self.scores[:, rows])
        return Candidates(scores, self.found[rows], self.wanted[rows], self.purchases[rows])

    def of_parts(self, parts: np.ndarray) -> Candidates:
        """The same for some of the parts."""
        return Candidates(self.scores[parts], self.found, self.wanted, self.purchases)


def gather(
    parts: Sequence[Scores],
    truth: csr_matrix,  # (users, items): held-out purchases
    train: csr_matrix,
    seen: csr_matrix | None = None,
    count: int = CANDIDATES,
    most: int = USERS,
    seed: int = 0,
) -> Candidates:
    """Candidates of the users with held-out purchases; `seen` is left out (the training's)."""
    users = np.flatnonzero(np.diff(truth.indptr))
    if len(users) > most:
        users = np.sort(np.random.default_rng(seed).choice(users, most, replace=False))
    seen = train if seen is None else seen
    items = train.shape[1]
    count = min(count, items)
    held = int(np.diff(truth[users].indptr).max(initial=0))
    width = len(parts) * count + held
    scores = np.empty((len(parts), len(users), width), np.float32)
    found = np.empty((len(users), width), bool)
    size = max(1, PAIRS // max(items, 1))
    for begin in range(0, len(users), size):
        block = slice(begin, min(begin + size, len(users)))
        person = users[block]
        blocks = [standardise(part(person)) for part in parts]
        ids = np.full((len(person), width), -1, np.int32)
        for number, values in enumerate(blocks):
            hidden = values.copy()
            mask_seen(hidden, seen, person)
            spot = np.empty((len(person), count), np.int32)
            best(hidden, count, spot, np.empty((len(person), count), np.float32))
            ids[:, number * count : (number + 1) * count] = spot
        own = truth[person]
        row = np.repeat(np.arange(len(person)), np.diff(own.indptr))
        place = np.arange(len(row)) - np.repeat(own.indptr[:-1], np.diff(own.indptr))
        ids[row, len(parts) * count + place] = own.indices
        ids.sort(axis=1)
        again = ids < 0
        again[:, 1:] |= ids[:, 1:] == ids[:, :-1]
        for number, values in enumerate(blocks):
            picked = np.take_along_axis(values, np.maximum(ids, 0), 1)
            scores[number, block] = np.where(again, LOW, picked)
        found[block] = hits(np.where(again, -1, ids), own)
    return Candidates(scores, found, np.diff(truth[users].indptr), np.diff(train[users].indptr))


def choose(
    candidates: Candidates, start: np.ndarray | None = None, rounds: int = 3
) -> tuple[np.ndarray, float]:
    """Weights (parts,) that sum to one, and their mean ndcg@10; forward, then refined in turn."""
    number = len(candidates.scores)
    if start is None:
        singles = [candidates.rewards(row).mean() for row in np.eye(number)]
        start = np.eye(number)[int(np.argmax(singles))]
    weights, now = start, candidates.rewards(start)
    for _ in range(rounds):
        before = weights
        offers = [_offer(candidates, weights, now, part) for part in range(number)]
        for part in np.argsort([-gain for gain, _ in offers], kind="stable"):
            gain, trial = _offer(candidates, weights, now, int(part))
            if gain > 0:
                weights, now = trial, candidates.rewards(trial)
        if weights is before:
            break
    return weights / weights.sum(), float(now.mean())


def _offer(
    candidates: Candidates, weights: np.ndarray, now: np.ndarray, part: int
) -> tuple[float, np.ndarray]:
    """The best other weight of a part, and its gain beyond one standard error (or -1)."""
    others = weights.copy()
    others[part] = 0
    if not others.any():
        return -1.0, weights
    base, fixed = others.sum(), candidates.total(others)
    best_mean, chosen, rewards = now.mean(), weights, now
    for step in (0.0, *STEPS):
        trial = others.copy()
        trial[part] = step * base
        values = candidates.rewards_of(fixed + np.float32(trial[part]) * candidates.scores[part])
        if values.mean() > best_mean:
            best_mean, chosen, rewards = values.mean(), trial, values
    if chosen is weights:
        return -1.0, weights
    difference = rewards - now
    gain = difference.mean() - difference.std() / np.sqrt(len(difference))
    return (float(gain), chosen) if gain > 0 else (-1.0, weights)


@dataclass(frozen=True)
class Weights:
    """Weights of the parts by how many purchases a user has."""

    names: tuple[str, ...]
    bounds: np.ndarray  # (buckets - 1,) ascending: bucket b has purchases <= bounds[b]
    values: np.ndarray  # (buckets, parts), rows sum to one
    cold: np.ndarray  # (parts,): users without purchases
    valid: float
    """Mean ndcg@10 on the validation users."""

    def of(self, purchases: np.ndarray) -> np.ndarray:
        """float64 (n, parts) for users with so many purchases (n,)."""
        rows = self.values[np.searchsorted(self.bounds, purchases, side="left")]
        return np.where((purchases > 0)[:, None], rows, self.cold)

    def table(self) -> dict[str, float]:
        """Mean weight of each part over the buckets, by name."""
        return dict(zip(self.names, self.values.mean(0).round(4).tolist(), strict=True))


def choose_weights(
    names: Sequence[str],
    candidates: Candidates,
    cold: Candidates | None = None,
    cold_rule: Mapping[str, float] | None = None,
    buckets: int = 3,
    plain: Sequence[str] = (),
) -> Weights:
    """Common weights, then those of users with few, some and many purchases, shrunk to them.

    Never below the weights that the parts in `plain` would have without the others. Users without
    purchases take weights chosen on `cold` candidates of the same parts (those in `cold_rule`
    only), or the rule itself where there are none. Without any candidates the first part has all
    weight.
    """
    rule = np.array([dict(cold_rule or {}).get(name, 0.0) for name in names])
    if not len(candidates.wanted):
        first = np.eye(1, len(names))
        return Weights(tuple(names), np.empty(0, int), first, _cold(rule, cold), 0.0)
    bounds = np.unique(
        np.quantile(candidates.purchases, np.arange(1, buckets) / buckets).astype(int)
    )
    values, valid = _by_count(candidates, bounds, choose(candidates)[0])
    able = np.flatnonzero(np.isin(names, plain))
    if 0 < len(able) < len(names):
        inner = candidates.of_parts(able)
        base = np.zeros((len(bounds) + 1, len(names)))
        common = np.zeros(len(names))
        common[able] = choose(inner)[0]
        base[:, able], least = _by_count(inner, bounds, common[able])
        if least > valid:
            start, _ = choose(candidates, common)
            values, valid = _by_count(candidates, bounds, start)
        if least > valid:
            values, valid = base, least
    return Weights(tuple(names), bounds, values, _cold(rule, cold), valid)


def _by_count(
    candidates: Candidates, bounds: np.ndarray, common: np.ndarray
) -> tuple[np.ndarray, float]:
    """Weights (buckets, parts) by purchases, each between its own and the common ones, unless the
    common ones are better; and their mean ndcg@10.
    """
    bucket = np.searchsorted(bounds, candidates.purchases, side="left")
    values = np.tile(common, (len(bounds) + 1, 1))
    for number in range(len(values)):
        rows = np.flatnonzero(bucket == number)
        if len(rows) < 50:
            continue
        own, _ = choose(candidates.some(rows), common)
        share = len(rows) / (len(rows) + SHRINK)
        values[number] = share * own + (1 - share) * common
    valid, least = (float(candidates.rewards(w).mean()) for w in (values[bucket], common))
    return (values, valid) if valid >= least else (np.tile(common, (len(values), 1)), least)


def _cold(rule: np.ndarray, cold: Candidates | None) -> np.ndarray:
    if cold is None or not len(cold.wanted) or not rule.any():
        return rule
    able = np.flatnonzero(rule)
    out = np.zeros(len(rule))
    out[able] = choose(cold.of_parts(able))[0]
    return out
