"""Labels: one class per user, checked and numbered."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from medapps.errors import MedappsError
from medapps.graph.ids import IdMap

MIN_USERS = 3  # per class: one to train, one to validate, one to test


@dataclass(frozen=True)
class Labels:
    """The class of every labelled user."""

    column: str
    users: IdMap
    classes: list[str]  # ascending
    label: np.ndarray  # (users,) int64 class numbers, in the order of `users`
    notes: dict[str, int] = field(default_factory=dict)


def label_columns(frame: pl.DataFrame) -> list[str]:
    """Columns that can be a label: all but `user`, fractional numbers, lists and bytes."""
    return [name for name in frame.columns if name != "user" and _is_class(frame[name].dtype)]


def _is_class(kind: pl.DataType) -> bool:
    """Whether values of this type are classes: they are few, and can be written as words."""
    return not (kind.is_float() or kind.is_nested() or kind in (pl.Binary, pl.Duration, pl.Object))


def read_labels(frame: pl.DataFrame, column: str | None = None, rare: str = "error") -> Labels:
    """Check the table `user, <label>...` and number its users and classes.

    Without `column` the first label column is taken. Rows without a label are left out and counted.
    `rare` says whether a class with fewer than three users is an error or is dropped.
    """
    column = _choose(frame, column)
    words = pl.col(column).cast(pl.String)
    blank = words.str.strip_chars() == ""
    frame = frame.select("user", label=pl.when(~blank).then(words))
    notes = {"unlabelled": int(frame["label"].null_count())}
    frame = frame.drop_nulls("label")
    before = len(frame)
    frame = frame.unique(maintain_order=True)
    notes["duplicate_rows"] = before - len(frame)
    twice = frame.filter(pl.col("user").is_duplicated())
    if len(twice):
        raise MedappsError(
            f"User {twice['user'][0]!r} has more than one value of {column}; "
            f"{twice['user'].n_unique()} users do.",
            fix="Keep one row per user.",
        )
    if frame.is_empty():
        raise MedappsError(f"Column {column} of the labels is empty for every user.")
    frame = _without_rare(frame, column, rare, notes)
    classes = sorted(frame["label"].unique().to_list())
    if len(classes) < 2:
        raise MedappsError(
            f"Column {column} has one class only ({classes[0]!r}): there is nothing to learn.",
            fix="Choose another column with --label.",
        )
    frame = frame.sort("user")
    number = frame["label"].replace_strict(
        {c: i for i, c in enumerate(classes)}, return_dtype=pl.Int64
    )
    return Labels(column, IdMap.of(frame["user"]), classes, number.to_numpy(), notes)


def _choose(frame: pl.DataFrame, column: str | None) -> str:
    if "user" not in frame.columns:
        raise MedappsError(
            f"The labels have no column user; they have {', '.join(frame.columns)}.",
            fix="Name the column of user ids 'user'.",
        )
    if frame.is_empty():
        raise MedappsError("The labels are empty: no user has a row.")
    nulls = frame["user"].is_null()
    if nulls.any():
        raise MedappsError(
            f"Column user of the labels has {nulls.sum()} empty values, "
            f"the first in row {nulls.arg_true()[0]}."
        )
    kind = frame["user"].dtype
    if not (kind.is_integer() or kind == pl.String):
        raise MedappsError(
            f"Column user of the labels has type {kind}; ids are strings or integers."
        )
    known = label_columns(frame)
    if not known:
        raise MedappsError(
            "The labels have no label column beside user: "
            + (", ".join(_types(frame)) or "there is no other column")
            + ".",
            fix="Give a column of words, whole numbers or dates.",
        )
    if column is None:
        return known[0]
    if column not in known:
        why = "is not there"
        if column in frame.columns:
            kind = frame[column].dtype
            what = "fractional numbers" if kind.is_float() else f"values of type {kind}"
            why = f"holds {what}, not classes"
        raise MedappsError(
            f"Label column {column!r} {why}.", fix=f"Choose one of: {', '.join(known)} (--label)."
        )
    return column


def _types(frame: pl.DataFrame) -> list[str]:
    """Words about columns that are no labels."""
    return [f"{name!r} has type {kind}" for name, kind in frame.schema.items() if name != "user"]


def _without_rare(
    frame: pl.DataFrame, column: str, rare: str, notes: dict[str, int]
) -> pl.DataFrame:
    counts = frame.group_by("label").len().sort("label")
    few = counts.filter(pl.col("len") < MIN_USERS)
    if few.is_empty():
        return frame
    if rare == "drop":
        notes["rare_classes"] = len(few)
        kept = frame.join(few, on="label", how="anti", maintain_order="left")
        notes["rare_users"] = len(frame) - len(kept)
        if kept.is_empty():
            raise MedappsError(f"No class of {column} has {MIN_USERS} users or more.")
        return kept
    raise MedappsError(
        f"Class {few['label'][0]!r} of {column} has {few['len'][0]} users and "
        f"{len(few)} of {len(counts)} classes have fewer than {MIN_USERS}: "
        "each class needs one user to train, one to validate and one to test.",
        fix="Merge these classes, or leave them out with --set label.rare=drop.",
    )
