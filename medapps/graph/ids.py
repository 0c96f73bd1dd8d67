"""IdMap: names on the outside, consecutive int32 on the inside.

Names of a data set are in ascending order, so a name's id is its rank: two readers of the same data
agree, and a lookup is a binary search over a memory-mapped file, without a dictionary of millions
of strings. Names that come later are appended, so that older ids stay; then `order` sorts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl

from medapps.arrays import open_arrays, write_arrays
from medapps.errors import MedappsError

_BLOCK = 1 << 18
_GATHER = 1 << 14
_FENCE = 128
_WIDEST_FENCE = 256
_FEW = 1024


@dataclass(frozen=True, eq=False)
class IdMap:
    """Distinct names, ascending (UTF-8 bytes for strings) unless `order` is given; the position is
    the id.
    """

    integers: np.ndarray | None
    """int64 (n,) when the names are integers, else None."""
    offsets: np.ndarray | None = None
    """int64 (n + 1,): name i is text[offsets[i]:offsets[i + 1]]."""
    text: np.ndarray | None = None
    """uint8: all names, one after another."""
    fences: np.ndarray | None = None
    """uint8 (f, width): every 128th name of a saved map, so that a search touches few pages."""
    order: np.ndarray | None = None
    """int32 (n,): ids by ascending name, where the names are not ascending."""

    @classmethod
    def of(cls, names: pl.Series) -> IdMap:
        """The map of the distinct values of a string or integer series without nulls."""
        return cls.of_sorted(names.unique().sort())

    @classmethod
    def of_sorted(cls, names: pl.Series) -> IdMap:
        """The map of names that are distinct and ascending already."""
        if names.dtype.is_integer():
            return cls(names.cast(pl.Int64).to_numpy())
        if names.dtype != pl.String:
            raise MedappsError(f"Ids must be strings or integers, not {names.dtype}.")
        offsets = _running(names.str.len_bytes().cast(pl.Int64).to_numpy())
        text = np.empty(int(offsets[-1]), np.uint8)
        for start in range(0, len(names), _BLOCK):
            piece = names.slice(start, _BLOCK).str.join("")[0].encode()
            text[offsets[start] : offsets[start] + len(piece)] = np.frombuffer(piece, np.uint8)
        return cls(None, offsets, text)

    @classmethod
    def in_order(cls, names: pl.Series) -> IdMap:
        """The map of distinct names whose position, in whatever order, is their id."""
        plain = cls.of_sorted(names)
        if names.is_sorted():
            return plain
        return replace(plain, order=names.arg_sort().cast(pl.Int32).to_numpy())

    def appended(self, names: pl.Series) -> IdMap:
        """The same with those of `names` that are unknown after all others, ascending."""
        fresh = names.unique().sort()
        fresh = fresh.filter(pl.Series(self.ids(fresh) < 0))
        if not len(fresh):
            return self
        return IdMap.in_order(pl.concat([self.names(), fresh.alias("name").cast(self.dtype)]))

    def __len__(self) -> int:
        if self.integers is not None:
            return len(self.integers)
        assert self.offsets is not None
        return len(self.offsets) - 1

    @property
    def dtype(self) -> type[pl.DataType]:
        """The polars type of the names."""
        return pl.String if self.integers is None else pl.Int64

    def names(self, ids: np.ndarray | None = None) -> pl.Series:
        """Names of `ids` (all, when None), in the order asked."""
        if ids is None:
            return self._all_names
        if self.integers is not None:
            return pl.Series("name", np.array(self.integers[ids]))
        return _series(*self._gather(ids))

    @cached_property
    def _all_names(self) -> pl.Series:
        if self.integers is not None:
            return pl.Series("name", np.array(self.integers))
        assert self.offsets is not None and self.text is not None
        return _series(self.offsets, self.text)

    def _gather(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Offsets and text of the names of `ids`."""
        assert self.offsets is not None and self.text is not None
        ids = np.asarray(ids, np.int64)
        starts = self.offsets[ids]
        lengths = self.offsets[ids + 1] - starts
        offsets = _running(lengths)
        at = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return offsets, self.text[at]

    def ids(self, values: pl.Series | Sequence[str] | Sequence[int] | np.ndarray) -> np.ndarray:
        """int32 ids of `values`; -1 where a name (or a null) is unknown."""
        series = values if isinstance(values, pl.Series) else pl.Series("name", values)
        right_type = (
            series.dtype == pl.String if self.integers is None else series.dtype.is_integer()
        )
        if len(series) == 0 or len(self) == 0 or not right_type:
            return np.full(len(series), -1, np.int32)
        if self.integers is not None:
            wanted = series.fill_null(0).cast(pl.Int64).to_numpy()
            at = np.searchsorted(self.integers, wanted, sorter=self.order)
            at = self._sorted(np.minimum(at, len(self) - 1))
            known = self.integers[at] == wanted
        elif len(series) * 8 > len(self):
            return self._ids_by_join(series)
        else:
            at, known = self._search(series.fill_null("") if series.null_count() else series)
        if series.null_count():
            known = known & series.is_not_null().to_numpy()
        return np.where(known, at, -1).astype(np.int32)

    def _sorted(self, ranks: np.ndarray) -> np.ndarray:
        """The ids of names by their place among all names, ascending."""
        return ranks if self.order is None else self.order[ranks]

    def _ids_by_join(self, series: pl.Series) -> np.ndarray:
        frame = self._all_names.to_frame().with_columns(id=pl.int_range(pl.len(), dtype=pl.Int32))
        wanted = series.alias("name").to_frame()
        joined = wanted.join(frame, on="name", how="left", maintain_order="left")
        return joined["id"].fill_null(-1).to_numpy()

    def _search(self, series: pl.Series) -> tuple[np.ndarray, np.ndarray]:
        """Binary search of all values at once; touches a few pages of a mapped file per value."""
        text_of = pl.col("name").str
        measured = (
            series.alias("name")
            .to_frame()
            .select(  # one query: each has its price
                length=text_of.len_bytes().cast(pl.Int64), joined=text_of.join("")
            )
        )
        lengths = measured["length"].to_numpy()
        text = np.frombuffer((measured["joined"][0] or "").encode(), np.uint8)
        width = int(lengths.max()) + 1
        wanted = _padded(text, _running(lengths)[:-1], lengths, width)
        low, high = self._between_fences(wanted)
        while (low < high).any():
            middle = np.minimum((low + high) // 2, len(self) - 1)
            name, size = self._padded_names(self._sorted(middle), width)
            # equal after padding with NUL: the shorter one comes first
            less = (low < high) & ((name < wanted) | ((name == wanted) & (size < lengths)))
            low, high = np.where(less, middle + 1, low), np.where(less, high, middle)
        at = self._sorted(np.minimum(low, len(self) - 1))
        name, size = self._padded_names(at, width)
        return at, (name == wanted) & (size == lengths)

    def _between_fences(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The range of ranks in which each of the padded names has its place."""
        if self.fences is None:
            return np.zeros(len(wanted), np.int64), np.full(len(wanted), len(self), np.int64)
        fences = np.ascontiguousarray(self.fences).view(f"S{self.fences.shape[1]}").reshape(-1)
        low = np.maximum(np.searchsorted(fences, wanted, "left") - 1, 0) * _FENCE
        return low, np.minimum(np.searchsorted(fences, wanted, "right") * _FENCE, len(self))

    def _padded_names(self, ids: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        assert self.offsets is not None and self.text is not None
        offsets, text = np.asarray(self.offsets), np.asarray(self.text)  # not the slower memmap
        starts = offsets[ids]
        lengths = offsets[ids + 1] - starts
        return _padded(text, starts, lengths, width), lengths

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that make up the map."""
        order = {} if self.order is None else {"order": self.order}
        if self.integers is not None:
            return {"integers": self.integers, **order}
        assert self.offsets is not None and self.text is not None
        return {"offsets": self.offsets, "text": self.text, **order}

    def save(self, path: Path) -> None:
        """Write the map to one array file."""
        arrays = self.arrays()
        if self.integers is None and len(self) > 8 * _FENCE:
            every = self._sorted(np.arange(0, len(self), _FENCE))
            assert self.offsets is not None
            width = int((self.offsets[every + 1] - self.offsets[every]).max())
            if 0 < width <= _WIDEST_FENCE:
                names, _ = self._padded_names(every, width)
                arrays["fences"] = names.view(np.uint8).reshape(-1, width)
        write_arrays(path, arrays)

    @classmethod
    def load(cls, path: Path) -> IdMap:
        """Map a saved map; nothing is read until it is used."""
        arrays = open_arrays(path)
        if set(arrays) - {"fences", "order"} not in ({"integers"}, {"offsets", "text"}):
            raise MedappsError(f"{path} is not an id map.")
        return cls(**{"integers": None, **arrays})

    def subset(self, ids: np.ndarray) -> IdMap:
        """The map of some of the names; `ids` ascending and distinct."""
        if self.order is not None:
            return IdMap.in_order(self.names(ids))
        if self.integers is not None:
            return IdMap(np.ascontiguousarray(self.integers[ids]))
        assert self.offsets is not None
        offsets = _running(self.offsets[ids + 1] - self.offsets[ids])
        text = np.empty(int(offsets[-1]), np.uint8)
        for start in range(0, len(ids), _GATHER):
            part = ids[start : start + _GATHER]
            text[offsets[start] : offsets[start + len(part)]] = self._gather(part)[1]
        return IdMap(None, offsets, text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IdMap):
            return NotImplemented
        mine, theirs = self.arrays(), other.arrays()
        return mine.keys() == theirs.keys() and all(
            np.array_equal(mine[key], theirs[key]) for key in mine
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class TripleIds:
    """Ids of entities and relations, and of a triple as one int64.

    The key (head * relations + relation) * entities + tail orders triples by content alone, so that
    sorting brings repeated ones together.
    """

    entities: IdMap
    relations: IdMap

    @classmethod
    def of(cls, tables: Sequence[pl.LazyFrame]) -> TripleIds:
        """Ids for all names in tables with the columns head, relation, tail."""
        ends = [table.select(name=side).unique() for table in tables for side in ("head", "tail")]
        kinds = [table.select(name="relation").unique() for table in tables]
        ids = cls(_vocabulary(ends), _vocabulary(kinds))
        entities, relations = len(ids.entities), len(ids.relations)
        if entities >= 2**31 or entities * entities * relations >= 2**63:
            raise MedappsError(
                f"{entities:,} entities and {relations:,} relations are more than medapps can hold."
            )
        return ids

    def pack(self, table: pl.LazyFrame) -> np.ndarray:
        """One int64 per row, ascending."""
        joined = table
        for column, names, key in (
            ("head", self.entities, "h"),
            ("tail", self.entities, "t"),
            ("relation", self.relations, "r"),
        ):
            frame = names.names().alias(column).to_frame().lazy()
            ids = pl.int_range(pl.len(), dtype=pl.Int64).alias(key)
            joined = joined.join(frame.with_columns(ids), on=column)
        packed = (pl.col("h") * len(self.relations) + pl.col("r")) * len(self.entities) + pl.col(
            "t"
        )
        keys = joined.select(key=packed).collect(engine="streaming")["key"]
        return np.sort(keys.to_numpy())

    def pack_ids(self, triples: np.ndarray) -> np.ndarray:
        """The same for int (n, 3) triples of ids."""
        head, relation, tail = (triples[:, i].astype(np.int64) for i in range(3))
        return np.sort((head * len(self.relations) + relation) * len(self.entities) + tail)

    def unpack(self, keys: np.ndarray) -> np.ndarray:
        """int32 (n, 3): head, relation, tail."""
        triples = np.empty((len(keys), 3), np.int32)
        rest, triples[:, 2] = np.divmod(keys, len(self.entities))
        triples[:, 0], triples[:, 1] = np.divmod(rest, len(self.relations))
        return triples

    def words(self, triple: np.ndarray) -> str:
        """One triple for people: (head, relation, tail)."""
        head, tail = self.entities.names(triple[[0, 2]])
        return f"({head}, {self.relations.names(triple[1:2])[0]}, {tail})"


def _vocabulary(names: Sequence[pl.LazyFrame]) -> IdMap:
    distinct = pl.concat(names).unique().sort("name")
    return IdMap.of_sorted(distinct.collect(engine="streaming")["name"])


def fence_bytes(lengths: np.ndarray) -> int:
    """Upper bound of what the fences of names with these lengths take in a saved map."""
    if len(lengths) <= 8 * _FENCE:
        return 0
    return -(-len(lengths) // _FENCE) * min(int(lengths.max()), _WIDEST_FENCE)


def _running(lengths: np.ndarray) -> np.ndarray:
    """Offsets of pieces with these lengths: 0, then their running sum."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _series(offsets: np.ndarray, text: np.ndarray) -> pl.Series:
    """A string series from offsets and bytes."""
    if len(offsets) <= _FEW:  # a query of polars has its price
        whole, cuts = text.tobytes(), offsets.tolist()
        few = [whole[a:b].decode() for a, b in pairwise(cuts)]
        return pl.Series("name", few, dtype=pl.String)
    parts = [pl.Series("name", [], dtype=pl.String)]
    for start in range(0, len(offsets) - 1, _BLOCK):
        cuts = offsets[start : start + _BLOCK + 1]
        whole = text[cuts[0] : cuts[-1]].tobytes()
        frame = pl.DataFrame({"at": cuts[:-1] - cuts[0], "size": np.diff(cuts)})
        name = pl.lit(whole).bin.slice(pl.col("at"), pl.col("size")).cast(pl.String)
        parts.append(frame.select(name.alias("name"))["name"])
    return pl.concat(parts)


def _padded(text: np.ndarray, starts: np.ndarray, lengths: np.ndarray, width: int) -> np.ndarray:
    """Byte strings of `width`: the pieces of `text`, cut or filled with NUL; shape (k,)."""
    column = np.arange(width)
    inside = column < lengths[:, None]  # (k, width)
    at = np.where(inside, starts[:, None] + column, 0)
    letters = np.where(inside, text[at] if len(text) else 0, 0).astype(np.uint8)
    return letters.view(f"S{width}").reshape(-1)
