"""PurchaseSplit: which purchases train, validate and test, decided once for graph and tasks.

The graph takes the training purchases as triples; vectors, labels and recommendations therefore
never see a purchase that validates or tests. Cold users are withheld: none of their purchases
trains. Everything is decided by names and times, never by the order of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from medapps.arrays import open_arrays
from medapps.errors import MedappsError
from medapps.graph.config import SplitConfig
from medapps.graph.ids import IdMap
from medapps.graph.interactions import checked, without_bad_ratings
from medapps.graph.split import (
    PARTS,
    TEST,
    TRAIN,
    VALID,
    by_date,
    digest_arrays,
    k_core,
    leave_one_out,
    mix,
    name_hash,
)
from medapps.store import NEW, Manifest, Provenance, read_manifest, usable, writing

COLD_VALID, COLD_TEST, WITHHELD = 3, 4, 5
"""Parts of cold users: some of them validate with all they have; of the others the test rows test
and the rest is not used at all.
"""
VALID_SHARE, VALID_LEAST, COLD_VALIDATES = 0.03, 2000, 0.2
"""Validation takes at most this part of the rows, but at least so many users where there are as
many; what it does not take trains. This part of the cold users validates.
"""


@dataclass(frozen=True)
class PurchaseSplit:
    """Distinct (user, item) pairs and what each is for."""

    users: IdMap
    items: IdMap
    pairs: np.ndarray
    """int32 (n, 2): user and item, by user and time."""
    part: np.ndarray
    """int8 (n,): TRAIN, VALID, TEST, COLD_VALID, COLD_TEST or WITHHELD."""
    notes: dict[str, int] = field(default_factory=dict)
    """Rows that were changed or dropped."""
    manifest: Manifest | None = field(default=None, compare=False, repr=False)

    @cached_property
    def digest(self) -> str:
        """Changes when any user, item or part does."""
        names = name_hash(self.users), name_hash(self.items)
        return digest_arrays(*names, self.pairs, self.part)

    def rows(self, *parts: int) -> np.ndarray:
        """The pairs of some parts, int32 (k, 2)."""
        return self.pairs[np.isin(self.part, parts)]

    def table(self, *parts: int) -> pl.DataFrame:
        """The pairs of some parts by name: user, item."""
        rows = self.rows(*parts)
        return pl.DataFrame(
            {"user": self.users.names(rows[:, 0]), "item": self.items.names(rows[:, 1])}
        )

    def save(self, folder: Path, provenance: Provenance = NEW) -> PurchaseSplit:
        """Write the split as a folder."""
        with writing(folder, kind="split", provenance=provenance) as draft:
            draft.arrays("split.safetensors", {"pairs": self.pairs, "part": self.part})
            self.users.save(draft.path("users.safetensors"))
            self.items.save(draft.path("items.safetensors"))
            draft.about = {"notes": self.notes, "content": self.digest}
        return self

    @classmethod
    @usable("split")
    def load(cls, folder: Path) -> PurchaseSplit:
        """Read a split back."""
        folder = Path(folder)
        manifest = read_manifest(folder, kind="split")
        arrays = open_arrays(folder / "split.safetensors")
        users, items = (IdMap.load(folder / f"{kind}.safetensors") for kind in ("users", "items"))
        notes = dict(manifest.about["notes"])
        pairs, part = np.asarray(arrays["pairs"]), np.asarray(arrays["part"])
        return cls(users, items, pairs, part, notes, manifest)


def split_purchases(
    source: str | Path | pl.DataFrame, config: SplitConfig | None = None
) -> PurchaseSplit:
    """Decide what each purchase of a file, a dataset folder or a table is for.

    Refuses data in which no user can be tested.
    """
    config = config or SplitConfig()
    every, name = checked(source, None, config.bad_ratings == "drop", config.own_split)
    good = without_bad_ratings(every, name, config.bad_ratings)
    own = "split" in good.columns
    frame = by_date(good, config.test_share) if config.by == "time" and not own else good
    frame = leave_one_out(frame)
    notes = {
        "bad_ratings": len(every) - len(good),
        "duplicate_rows": len(good) - len(frame),
        "no_timestamps": int("timestamp" not in frame.columns),
    }
    if config.core > 1:  # rows are held out before, so that the core does not move them
        held = len(frame)
        frame = _k_core(frame, config.core)
        notes["rows_outside_core"] = held - len(frame)
    users, items = IdMap.of(frame["user"]), IdMap.of(frame["item"])
    pairs = np.stack([users.ids(frame["user"]), items.ids(frame["item"])], axis=1)
    part = _parts(pairs[:, 0], _part_ids(frame), mix(name_hash(users)), config.cold_share)
    if not np.isin(part, (TEST, COLD_TEST)).any():
        raise MedappsError(
            f"No user can be tested: all {len(users)} users have a single interaction, "
            "or the split column has no test rows.",
            fix="Give at least some users two interactions.",
        )
    return PurchaseSplit(users, items, pairs, part, notes)


def _parts(user: np.ndarray, part: np.ndarray, lot: np.ndarray, cold_share: float) -> np.ndarray:
    """The parts with cold users withheld, a few of them for validation, and no more validation
    rows than are needed; `lot` (users,) uint64 is each user's draw.
    """
    out = part.copy()
    tested = np.zeros(len(lot), bool)
    tested[user[part == TEST]] = True
    top = 2**64 - 1
    cold = tested & (lot < np.uint64(int(cold_share * top)))
    validates = cold & (lot < np.uint64(int(cold_share * COLD_VALIDATES * top)))
    able = np.unique(user[(part == VALID) & ~cold[user]])
    limit = max(VALID_LEAST, int(VALID_SHARE * (~cold[user]).sum()))
    chosen = np.zeros(len(lot), bool)
    chosen[able[np.argsort(mix(lot[able]), kind="stable")[:limit]]] = True
    out[(part == VALID) & ~chosen[user]] = TRAIN
    out[cold[user]] = np.where(part[cold[user]] == TEST, COLD_TEST, WITHHELD)
    out[validates[user]] = COLD_VALID
    return out


def _part_ids(frame: pl.DataFrame) -> np.ndarray:
    return frame["split"].replace_strict(PARTS, return_dtype=pl.Int8).to_numpy()


def _k_core(frame: pl.DataFrame, core: int) -> pl.DataFrame:
    user, item = (
        frame[name].rank("dense").to_numpy().astype(np.int64) for name in ("user", "item")
    )
    frame = frame.filter(pl.Series(k_core(user, item, core, _part_ids(frame) == TEST)))
    if frame.is_empty():
        raise MedappsError(
            f"No user and item has {core} interactions among the others: the {core}-core is empty.",
            fix="Lower it with --set split.core=...",
        )
    return frame
