"""From names to numbers: the sorted vocabulary of a table, and its triples as packed integers.

A triple of ids is one int64, (head * relations + relation) * entities + tail. Sorting these puts
triples into an order that depends on their content alone and brings repeated ones together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from medapps.errors import MedappsError
from medapps.graph.ids import IdMap


@dataclass(frozen=True)
class Numbering:
    """The two vocabularies that give a triple its number."""

    entities: IdMap
    relations: IdMap

    @classmethod
    def of(cls, tables: Sequence[pl.LazyFrame]) -> Numbering:
        """Number every entity and relation of tables with the columns head, relation, tail."""
        ends = [table.select(name=side).unique() for table in tables for side in ("head", "tail")]
        kinds = [table.select(name="relation").unique() for table in tables]
        numbering = cls(_vocabulary(ends), _vocabulary(kinds))
        entities, relations = len(numbering.entities), len(numbering.relations)
        if entities >= 2**31 or entities * entities * relations >= 2**63:
            raise MedappsError(
                f"{entities:,} entities and {relations:,} relations are more than medapps numbers."
            )
        return numbering

    def pack(self, table: pl.LazyFrame) -> np.ndarray:
        """One int64 per row, ascending."""
        joined = table
        for column, ids, number in (
            ("head", self.entities, "h"),
            ("tail", self.entities, "t"),
            ("relation", self.relations, "r"),
        ):
            names = ids.names().alias(column).to_frame().lazy()
            numbered = names.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(number))
            joined = joined.join(numbered, on=column)
        key = (pl.col("h") * len(self.relations) + pl.col("r")) * len(self.entities) + pl.col("t")
        keys = joined.select(key=key).collect(engine="streaming")["key"]
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
