"""A label of products from their titles: makes the task `genre` of MovieLens-1M.

    python pipelines/text_titles.py DATA/ml-1m tasks
    medapps text train --task genre --data tasks --epochs 10
    medapps text evaluate --task genre --data tasks
    medapps text export --task genre --width 48 --format onnx --out phone

Films of exactly one genre, and of a genre that at least 50 of them have. A fifth is for the test.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl
from script import start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder with items.parquet and triples.parquet")
    parser.add_argument("out", type=Path, help="where the folder of the task goes")
    given = parser.parse_args()
    titles = labelled(
        pl.read_parquet(given.data / "items.parquet"),
        pl.read_parquet(given.data / "triples.parquet"),
    )
    folder = given.out / "genre"
    folder.mkdir(parents=True, exist_ok=True)
    order = np.random.default_rng(0).permutation(len(titles))
    test = len(titles) // 5
    titles[order[test:]].write_parquet(folder / "train.parquet")
    titles[order[:test]].write_parquet(folder / "dev.parquet")
    print(f"{len(titles) - test:,} titles to learn from, {test:,} to test: {folder}")


def labelled(items: pl.DataFrame, triples: pl.DataFrame, least: int = 50) -> pl.DataFrame:
    """Columns title and label of the films of one genre that is frequent enough."""
    genres = triples.filter(pl.col("relation") == "has_genre").select(item="head", label="tail")
    alone = genres.filter(pl.len().over("item") == 1).filter(pl.len().over("label") >= least)
    named = alone.join(items, on="item").sort("item")
    return named.select("title", pl.col("label").str.strip_prefix("genre:"))


if __name__ == "__main__":
    start(main)
