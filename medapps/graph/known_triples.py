"""Known triples: which tails does (head, relation) have, which heads does (relation, tail) have.

Each side is the triples in order of the given end, then relation, then answer, with an offset per
entity. A graph that was read is in that order for its heads already, so that side is the triples
themselves; the other takes six bytes per triple (eight beyond 32,767 relations).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from medapps.arrays import forget

AT_ONCE = 2**22
"""Triples that are sorted at a time, so that no int64 copy of all of them is made."""


@dataclass(frozen=True)
class Side:
    """Triples in order of one end."""

    offsets: np.ndarray
    """(entities + 1,): the triples of entity e are offsets[e] to offsets[e + 1]."""
    relations: np.ndarray
    """(n,), ascending within an entity; may be a view."""
    answers: np.ndarray
    """int32 (n,), ascending within entity and relation; may be a view."""

    def spans(self, entity: np.ndarray, relation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(starts, stops): where the answers of every query are."""
        count = len(entity)
        entity = np.asarray(entity, np.int64)
        low, high = self.offsets[entity].astype(np.int64), self.offsets[entity + 1].astype(np.int64)
        wanted = np.asarray(relation, np.int64)
        found = first_at_least(
            self.relations,
            np.concatenate([low, low]),
            np.concatenate([high, high]),
            np.concatenate([wanted, wanted + 1]),
        )
        return found[:count], found[count:]


@dataclass(frozen=True)
class KnownTriples:
    """Answers queries in both directions."""

    by_head: Side
    by_tail: Side

    @classmethod
    def of(cls, triples: np.ndarray, entities: int) -> KnownTriples:
        """Index int32 (n, 3) triples; keeps views of those that are in order."""
        return cls(_side(triples, 0, 2, entities), _side(triples, 2, 0, entities))

    def spans(
        self, entity: np.ndarray, relation: np.ndarray, side: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(answers, starts, stops): the known answers of query i are answers[starts[i]:stops[i]].

        `side` is "tail" when (head, relation) is given and tails are asked, else "head".
        """
        given = self.by_head if side == "tail" else self.by_tail
        return given.answers, *given.spans(entity, relation)


def flat(
    answers: np.ndarray, starts: np.ndarray, stops: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(query, answer): every answer of every span."""
    lengths = stops - starts
    query = np.repeat(np.arange(len(starts)), lengths)
    first = np.repeat(starts - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    return query, answers[np.arange(len(query)) + first]


def among(
    answers: np.ndarray, starts: np.ndarray, stops: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """bool (queries, k): is `wanted` (queries, k) in the span of its query?"""
    low, high = (np.repeat(ends, wanted.shape[1]) for ends in (starts, stops))
    place = first_at_least(answers, low, high, wanted.reshape(-1))
    inside = place < high
    found = answers[np.minimum(place, len(answers) - 1)] == wanted.reshape(-1)
    return (inside & found).reshape(wanted.shape)


def first_at_least(
    values: np.ndarray, low: np.ndarray, high: np.ndarray, wanted: np.ndarray | int
) -> np.ndarray:
    """int64: the first place in [low, high) whose value is at least the wanted one, else high."""
    last = max(0, len(values) - 1)
    while (open_ := low < high).any():
        middle = (low + high) >> 1
        less = open_ & (values[np.minimum(middle, last)] < wanted)
        low = np.where(less, middle + 1, low)
        high = np.where(open_ & ~less, middle, high)
    return low


def known_bytes(triples: int, entities: int) -> int:
    """Bytes of the index when the triples are in order."""
    return 6 * triples + 8 * entities


def making_bytes(triples: int) -> int:
    """Bytes that making the index takes for a while: a mask and the keys of a piece."""
    return triples + 32 * min(triples, _at_once(triples))


def _side(triples: np.ndarray, given: int, asked: int, entities: int) -> Side:
    count = np.zeros(entities, np.int64)
    for rows in _pieces(triples):
        count += np.bincount(rows[:, given], minlength=entities)
    small = len(triples) < 2**32
    offsets = np.zeros(entities + 1, np.uint32 if small else np.int64)
    np.cumsum(count, out=offsets[1:])
    if _in_order(triples, given, asked):
        return Side(offsets, triples[:, 1], triples[:, asked])
    most = max((int(rows[:, 1].max()) for rows in _pieces(triples)), default=0)
    relations = np.empty(len(triples), np.int16 if most < 2**15 else np.int32)
    answers = np.empty(len(triples), np.int32)
    kinds = most + 1
    for first, stop in _ranges(offsets, _at_once(len(triples))):
        ends = triples[:, given]
        rows = triples[(ends >= first) & (ends < stop)]
        keys = (rows[:, given] - np.int64(first)) * kinds + rows[:, 1]
        keys = np.sort(keys * entities + rows[:, asked])
        part = slice(int(offsets[first]), int(offsets[stop]))
        rest, answers[part] = np.divmod(keys, entities)
        relations[part] = rest % kinds
        forget(triples)
    return Side(offsets, relations, answers)


def _at_once(triples: int) -> int:
    return max(AT_ONCE, triples // 16)


def _pieces(triples: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(triples), AT_ONCE):
        yield triples[start : start + AT_ONCE]
        forget(triples)


def _in_order(triples: np.ndarray, given: int, asked: int) -> bool:
    """Are they ascending by given end, relation and answer?"""
    for start in range(0, len(triples), AT_ONCE):
        rows = triples[start : start + AT_ONCE + 1]
        tie = np.ones(max(0, len(rows) - 1), bool)
        for column in (given, 1, asked):
            before, after = rows[:-1, column], rows[1:, column]
            if (tie & (after < before)).any():
                return False
            tie &= after == before
        forget(triples)
    return True


def _ranges(offsets: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of entities with at most `most` triples, or of one entity."""
    first, entities = 0, len(offsets) - 1
    while first < entities:
        limit = int(offsets[first]) + most
        stop = int(np.searchsorted(offsets, limit, "right")) - 1
        stop = min(entities, max(first + 1, stop))
        if offsets[stop] > offsets[first]:
            yield first, stop
        first = stop
