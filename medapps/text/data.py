"""Sentences with labels: the tasks of GLUE, or any folder that looks like one of them.

A task is a folder with train.parquet and dev.parquet: one or two columns of text and `label`, which
holds classes (numbers or words) or, as decimal numbers, the target of a regression.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from medapps.errors import MedappsError
from medapps.store import file_digest

METRICS: dict[str, tuple[str, ...]] = {"cola": ("mcc", "accuracy"), "mrpc": ("f1", "accuracy")}
METRICS |= dict.fromkeys(("sst2", "rte", "wnli"), ("accuracy",))
"""What GLUE reports, the most telling first."""


@dataclass(frozen=True)
class TextTask:
    """Training and test sentences of a task."""

    name: str
    data: str
    """Name of the folder that the task's folder is in."""
    train: pl.DataFrame
    dev: pl.DataFrame
    texts: tuple[str, ...]
    """One or two columns."""
    classes: tuple[str, ...]
    """Names of the classes in ascending order; none for a regression."""
    digests: Mapping[str, str]

    @property
    def metrics(self) -> tuple[str, ...]:
        usual = ("f1_macro", "accuracy") if self.classes else ("pearson", "spearman")
        return METRICS.get(self.name, usual)

    def labels(self, frame: pl.DataFrame) -> np.ndarray:
        """int64 classes or float32 targets."""
        if not self.classes:
            return frame["label"].to_numpy().astype(np.float32)
        number = {name: i for i, name in enumerate(self.classes)}
        return np.array([number[str(value)] for value in frame["label"]], np.int64)


def read_task(folder: Path, name: str) -> TextTask:
    """Read and check the task `name` inside `folder`."""
    place = Path(folder) / name
    paths = {part: place / f"{part}.parquet" for part in ("train", "dev")}
    if not all(path.is_file() for path in paths.values()):
        found = sorted(p.parent.name for p in Path(folder).glob("*/train.parquet"))
        raise MedappsError(
            f"There is no task {name!r} in {folder}: it needs train.parquet and dev.parquet.",
            fix=f"Take one of {', '.join(found)}." if found else "Give another --data.",
        )
    train, dev = (pl.read_parquet(path) for path in paths.values())
    texts = tuple(c for c, kind in train.schema.items() if kind == pl.String and c != "label")
    both = [*texts, "label"]
    if not 1 <= len(texts) <= 2 or not set(both) <= set(train.columns) & set(dev.columns):
        raise MedappsError(f"The tables of {place} need one or two columns of text, and label.")
    train, dev = train.select(both), dev.select(both)
    if any(not len(table) or sum(table.null_count().row(0)) for table in (train, dev)):
        raise MedappsError(f"The tables of {place} have no rows, or gaps in them.")
    classes: tuple[str, ...] = ()
    if not train.schema["label"].is_float():
        classes = tuple(str(value) for value in train["label"].unique().sort())
        if len(classes) < 2 or set(dev["label"].cast(pl.String)) - set(classes):
            raise MedappsError(f"The dev table of {place} has other classes, or there is only one.")
    digests = {part: file_digest(path) for part, path in paths.items()}
    return TextTask(name, place.resolve().parent.name, train, dev, texts, classes, digests)


@dataclass(frozen=True)
class Encoded:
    """Tokens of sentences, as long as each is."""

    tokens: list[list[int]]
    types: list[list[int]]
    """0 for the first text of a pair, 1 for the second."""
    labels: np.ndarray
    pad: int

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, rows: np.ndarray) -> dict[str, Tensor]:
        """Padded to the longest: input_ids, token_type_ids, attention_mask (B, L)."""
        out = np.zeros((3, len(rows), max(len(self.tokens[row]) for row in rows)), np.int64)
        out[0] = self.pad
        for at, row in enumerate(rows):
            size = len(self.tokens[row])
            out[:, at, :size] = self.tokens[row], self.types[row], [1] * size
        names = ("input_ids", "token_type_ids", "attention_mask")
        return dict(zip(names, torch.from_numpy(out), strict=True))

    def by_length(self, size: int) -> list[np.ndarray]:
        """Rows of similar length, all of them once."""
        order = np.argsort([len(one) for one in self.tokens], kind="stable")
        return np.split(order, range(size, len(order), size))


def encode(tokenizer: Any, frame: pl.DataFrame, labels: np.ndarray, max_length: int) -> Encoded:
    """Tokens of every row: all columns but `label`, one after the other."""
    columns = [frame[name].to_list() for name in frame.columns if name != "label"]
    found = tokenizer(*columns, truncation=True, max_length=max_length, return_token_type_ids=True)
    return Encoded(found["input_ids"], found["token_type_ids"], labels, tokenizer.pad_token_id)


def epoch_batches(lengths: np.ndarray, size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Shuffled batches of one epoch; within a pool of sixteen, sentences of like length meet."""
    draws = np.random.default_rng([seed, epoch])
    order = draws.permutation(len(lengths))
    batches: list[np.ndarray] = []
    for pool in np.split(order, range(16 * size, len(order), 16 * size)):
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += np.split(pool, range(size, len(pool), size))
    return [batches[i] for i in draws.permutation(len(batches))]
