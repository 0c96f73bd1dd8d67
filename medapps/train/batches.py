"""Batches: which triples are positives, what corrupts them, and which corruptions do not count.

Shared mode: the positives of a chunk meet the same N entities. Independent mode: each positive has
its own. Chunks corrupt tails and heads in turn, over the whole run, so both sides get equal shares.

Dropped coordinates: at each step a positive does without some numbers of its relation. A term of
PairRE and of the bilinear scorers has a number of the relation as a factor, so that a zero there
leaves the coordinate out, for the positive and all its negatives. What stays is stretched to keep
the score's size: square roots of sums of squares by (1 - p)^-1/2, other sums by 1 / (1 - p).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from medapps.arrays import forget
from medapps.graph.known_triples import KnownTriples, among, flat
from medapps.model.rules import RULES
from medapps.train.config import MedConfig
from medapps.train.memory import Sizes, plan_mapped
from medapps.train.order import (
    DROPS,
    NEGATIVES,
    EpochOrder,
    Pairs,
    Partitions,
    Ranges,
    Shuffle,
    group_triples,
    stream,
)
from medapps.train.tables import working_file

LONG = 2**12
"""Queries with more known answers are searched instead of spelled out."""


@dataclass(frozen=True)
class Chunk:
    """Positives [start, stop) of a batch with one side to corrupt."""

    start: int
    stop: int
    side: str
    """tail or head: what is asked."""
    negatives: np.ndarray
    """int32 (N,) shared, or (stop - start, K) independent."""
    masked: np.ndarray
    """int64: flat positions in (stop - start, N) that are no negatives."""


@dataclass(frozen=True)
class Batch:
    """B positives as (source, relation, target): the target is asked, the source given."""

    source: np.ndarray  # int32 (B,)
    relation: np.ndarray  # int32 (B,)
    target: np.ndarray  # int32 (B,)
    foreign: np.ndarray | None  # float32 (B,): 1 where the source is no answer to its own query
    chunks: tuple[Chunk, ...]
    of: int
    """Positives in the whole batch, of which these may be a part."""
    kept: np.ndarray | None = None
    """float32 (B, d): factors of the coordinates, 0 where one is dropped."""


@dataclass(frozen=True)
class Sampler:
    """Draws batch `step` of `epoch` as a function of the seed; keeps no state."""

    triples: np.ndarray
    """int32 (n, 3)."""
    entities: int
    config: MedConfig
    seed: int
    order: EpochOrder
    known: KnownTriples | None = None
    """Needed where config.sampling.filter_known."""
    one_way: np.ndarray | None = None
    """bool (relations,): needed where config.loss.own_answer."""
    part: tuple[int, int] = (0, 1)
    """Which part of every batch is drawn here, of how many."""

    @cached_property
    def _drops(self) -> bool:
        return any(self.config.drops)

    @cached_property
    def _drawn(self) -> np.ndarray:
        """bool (entities,), all False between uses."""
        return np.zeros(self.entities, bool)

    @property
    def steps(self) -> int:
        """Batches in an epoch; the last one may be short."""
        return self.order.steps

    def batch(self, epoch: int, step: int) -> Batch:
        """The positives of this step, or this sampler's part of them, and their negatives."""
        size = self.config.sampling.batch
        rows = self.order.rows(epoch, step)
        ranges = self.order.entities(epoch, step)
        count = len(rows)
        first, last = self._range(count)
        triples = self.triples[rows[first:last]]
        per_batch = -(-size // self.config.sampling.chunk)
        turn = (epoch * self.steps + step) * per_batch
        source = np.empty(last - first, np.int32)
        target = np.empty(last - first, np.int32)
        relation = np.ascontiguousarray(triples[:, 1])
        draws = stream(self.seed, NEGATIVES, epoch, step)
        chunks = []
        for i, start in enumerate(range(0, count, self.config.sampling.chunk)):
            stop = min(start + self.config.sampling.chunk, count)
            side = "tail" if (turn + i) % 2 == 0 else "head"
            given, asked = (0, 2) if side == "tail" else (2, 0)
            negatives = self._draw(draws, stop - start, ranges)  # all parts draw the same
            begin, end = max(start, first), min(stop, last)
            if begin >= end:
                continue
            part = slice(begin - first, end - first)
            source[part], target[part] = triples[part, given], triples[part, asked]
            if negatives.ndim == 2:
                negatives = negatives[begin - start : end - start]
            masked = self._masked(source[part], relation[part], target[part], side, negatives)
            chunks.append(Chunk(part.start, part.stop, side, negatives, masked))
        if not chunks:  # a short batch for many processes
            none = negatives[:0]
            chunks = [Chunk(0, 0, side, none, np.empty(0, np.int64))]
        foreign = kept = None
        if self.one_way is not None:
            foreign = (self.one_way[relation] & (source != target)).astype(np.float32)
        if self._drops:
            draws = stream(self.seed, DROPS, epoch, step)
            kept = draw_kept(draws, count, self.config)[first:last]
        return Batch(source, relation, target, foreign, tuple(chunks), count, kept)

    def _range(self, count: int) -> tuple[int, int]:
        """This part of `count` positives; weights that span a chunk keep it in one part."""
        unit = self.config.sampling.chunk if self.config.loss.negative_norm == "batch" else 1
        units, (part, of) = -(-count // unit), self.part
        return min(count, part * units // of * unit), min(count, (part + 1) * units // of * unit)

    def _draw(self, draws: np.random.Generator, positives: int, ranges: Ranges) -> np.ndarray:
        """Uniform entities."""
        n = self.config.sampling.negatives
        shared = self.config.sampling.negative_mode == "shared"
        shape = (n,) if shared else (positives, n)
        out = draws.integers(0, sum(last - first for first, last in ranges), shape, np.int32)
        if ranges != ((0, self.entities),):
            out = across(ranges, out)
        return out

    def _masked(
        self,
        source: np.ndarray,
        relation: np.ndarray,
        target: np.ndarray,
        side: str,
        negatives: np.ndarray,
    ) -> np.ndarray:
        if self.known is None:
            own = target[:, None] == negatives  # (positives, N) by broadcasting in both modes
            return np.flatnonzero(own)
        answers, starts, stops = self.known.spans(source, relation, side)
        long = np.flatnonzero(stops - starts > LONG)  # hubs: do not spell their answers out
        hubs = answers, starts[long], stops[long]
        stops[long] = starts[long]
        query, answer = flat(answers, starts, stops)
        if negatives.ndim == 1:
            self._drawn[negatives] = True  # few answers are among the negatives: drop the rest
            hit = self._drawn[answer]
            self._drawn[negatives] = False
            query, answer = query[hit], answer[hit]
            columns, inverse = np.unique(negatives, return_inverse=True)
            mask = np.zeros((len(source), len(columns)), bool)
            mask[query, np.searchsorted(columns, answer)] = True
            if len(long):
                mask[long] = among(*hubs, np.broadcast_to(columns, (len(long), len(columns))))
            return np.flatnonzero(mask[:, inverse])
        rows = np.arange(len(source))[:, None]
        keys = query.astype(np.int64) * self.entities + answer  # ascending: queries, then answers
        mask = np.isin(rows * np.int64(self.entities) + negatives, keys)
        if len(long):
            mask[long] = among(*hubs, negatives[long])
        return np.flatnonzero(mask)


def across(ranges: Ranges, numbers: np.ndarray) -> np.ndarray:
    """int32: entities of disjoint ranges, counted through from the first range to the last."""
    first, last = np.array(ranges).T
    ends = np.cumsum(last - first)
    which = np.searchsorted(ends, numbers, "right")
    return (numbers + (last - ends)[which]).astype(np.int32)


def one_way_relations(triples: np.ndarray, entities: int) -> np.ndarray:
    """bool (relations,): less than half of the relation's triples (h, r, t) have a (t, r, h)."""
    head, relation, tail = (triples[:, i].astype(np.int64) for i in range(3))
    keys = (relation * entities + head) * entities + tail
    back = np.isin((relation * entities + tail) * entities + head, keys)
    count = np.bincount(relation)
    return np.bincount(relation, weights=back) < count / 2


def sampler_of(
    triples: np.ndarray,
    entities: int,
    config: MedConfig,
    seed: int,
    known: KnownTriples | None,
    order: EpochOrder | None = None,
) -> Sampler:
    """A sampler with what the config asks for; `known` is the index of the training triples."""
    order = order or Shuffle(len(triples), entities, config.sampling.batch, seed)
    one_way = one_way_relations(triples, entities) if config.loss.own_answer else None
    known = known if config.sampling.filter_known else None
    return Sampler(triples, entities, config, seed, order, known, one_way)


def arranged(
    train: np.ndarray, sizes: Sizes, seed: int, folder: Path | None
) -> tuple[Sampler, str]:
    """The sampler of a training, and what was decided because of the memory limit, for people.

    A table in a file takes a copy of the triples in `folder`, in the order of the partitions.
    """
    config, entities = sizes.config, sizes.entities
    if config.hardware.table != "mmap":
        known = KnownTriples.of(train, entities) if config.sampling.filter_known else None
        return sampler_of(train, entities, config, seed, known), ""
    plan = plan_mapped(sizes)
    known = KnownTriples.of(train, entities) if plan.filter_known else None
    parts = Partitions(entities, plan.partitions)
    grouped = working_file(folder, train.shape, "int32")
    order = Pairs(parts, group_triples(train, parts, grouped), config.sampling.batch, seed)
    forget(train)
    note = "The table is in a file, all of it in memory."
    if plan.partitions > 1:
        note = f"The table is in a file: {plan.partitions} partitions of {parts.size:,} rows, "
        note += "two in memory."
    if config.sampling.filter_known and not plan.filter_known:
        note += " Negatives that are training triples are not left out: the index does not fit."
    return sampler_of(grouped, entities, config, seed, known, order), note


def draw_kept(draws: np.random.Generator, positives: int, config: MedConfig) -> np.ndarray:
    """float32 (positives, d): the factor of every coordinate, 0 where it is dropped."""
    measure = RULES[config.scorer].NORMS[config.norm]
    power = 0.5 if measure.is_distance and not measure.sums else 1.0
    added = np.diff((0, *config.dims))
    share = np.repeat(np.array(config.drops, np.float32), added)
    stretch = (1 - share) ** np.float32(-power)
    return np.where(draws.random((positives, config.dims[-1]), np.float32) < share, 0, stretch)
