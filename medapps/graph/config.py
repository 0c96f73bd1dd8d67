"""How tables become a graph."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from medapps.config import Config

Column = str | int
Policy = Literal["drop", "keep", "error"]


class GraphConfig(Config):
    """Columns, policies and extra relations of `read_graph`."""

    head: Column = "head"
    """Column of the head: a name, or a position counted from 0."""
    relation: Column = "relation"
    """Column of the relation."""
    tail: Column = "tail"
    """Column of the tail."""
    header: bool = True
    """Whether text files begin with a line of column names; otherwise columns are positions."""
    separator: str | None = Field(default=None, pattern=r'^[^\x80-\x{10ffff}\r\n"]$')
    """One ASCII character between the fields of a text file; by default comma in .csv, else tab."""
    duplicates: Policy = "drop"
    """What to do with a triple that occurs again in its split."""
    self_loops: Policy = "keep"
    """What to do with a triple whose head is its tail."""
    interactions: Literal["auto", "on", "off"] = "auto"
    """Take the training purchases in as triples of the relation `takes`: where they can be split
    and their ids fit, or it is an error if not, or never.
    """
    inverse: bool = False
    """Add (tail, relation:inverse, head) for every training triple."""
    user_prefix: str = "user:"
    """Entities whose name begins so are the users, if there are any."""


class InteractionsConfig(Config):
    """Columns of the interactions, each a name or a position counted from 0, and their dates."""

    user: Column = "user"
    """Column of who took something."""
    item: Column = "item"
    """Column of what was taken."""
    rating: Column = "rating"
    """Column of the rating, where there is one."""
    timestamp: Column = "timestamp"
    """Column of the time, where there is one: a number or a date."""
    dates: Literal["iso", "day-first", "month-first"] = "iso"
    """How dates are written: 2026-01-31, 31/01/2026 or 01/31/2026; a time of day may follow."""


class LabelsConfig(Config):
    """Columns of the labels; all but the user's are labels."""

    user: Column = "user"
    """Column of the user: a name, or a position counted from 0."""


class TableConfig(Config):
    """How the tables by user are read."""

    interactions: InteractionsConfig = Field(default_factory=InteractionsConfig)
    """Who took what."""
    labels: LabelsConfig = Field(default_factory=LabelsConfig)
    """Classes of users."""


class SplitConfig(Config):
    """Which purchases train, validate and test; graph and tasks share it."""

    by: Literal["last", "time"] = "last"
    """Test the last purchase of each user, or the latest part of all purchases."""
    own_split: bool = True
    """Use the column `split` of the interactions when they have one."""
    test_share: float = Field(default=0.1, gt=0, lt=0.5)
    """Part of all purchases that tests, and as much that validates, with `by: time`."""
    cold_share: float = Field(default=0.0, ge=0, lt=1)
    """Part of the users whose purchases are withheld, to test users without any."""
    core: int = Field(default=0, ge=0, le=2**31 - 1)
    """Remove users and items with fewer training interactions; 0 keeps all."""
    bad_ratings: Literal["error", "drop"] = "error"
    """What to do with negative or non-finite ratings."""
