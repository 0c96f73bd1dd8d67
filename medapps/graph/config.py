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
    add_interactions: str | None = None
    """Relation under which training interactions are added (never validation or test ones)."""
    inverse: bool = False
    """Add (tail, relation:inverse, head) for every training triple."""
    user_prefix: str = "user:"
    """Entities whose name begins so are the users, if there are any."""
