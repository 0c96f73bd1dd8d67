"""What float16 and int8 cost at each size: link prediction on FB15k-237, both tasks on Ciao.

    python pipelines/crop_quality.py --data DIR --workspace workspace
    python pipelines/crop_quality.py --data DIR --part rank --epochs 5      (a quick look)

One training per data set; every crop is written, loaded from its files and measured, every network
for the same twelve epochs. Finished trainings are kept in the workspace. Prints a table per data
set and writes it as CSV.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import polars as pl
from script import say, start

from medapps.crop.crop import Crop
from medapps.crop.embedding import Embedding
from medapps.crop.export import Export, export_crop
from medapps.crop.quantize import DTYPES
from medapps.evaluate.link_prediction import rank_crop
from medapps.graph.config import SplitConfig
from medapps.graph.graph import Graph
from medapps.graph.split import split_purchases
from medapps.graph.tables import table_file
from medapps.graph.user_tables import read_labels
from medapps.label.config import LabelConfig
from medapps.label.run import label_users
from medapps.recommend.run import train_recommender
from medapps.settings import Settings
from medapps.stages import Runner, graph_stage, train_stage
from medapps.store import REPLACE, Workspace
from medapps.train.config import MedConfig
from medapps.train.session import Session


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="holds fb15k-237 and ciao")
    parser.add_argument("--workspace", type=Path, default=Path("workspace"))
    parser.add_argument("--part", choices=["rank", "tasks", "both"], default="both")
    parser.add_argument("--dims", type=int, nargs="+", default=[10, 100, 500])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--limit", type=int, default=None, help="test triples to rank; else all")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each task")
    parser.add_argument("--no-track", action="store_true")
    given = parser.parse_args()
    runner = Runner(Workspace(given.workspace), tracked=not given.no_track, say=say)
    config = MedConfig(dims=tuple(given.dims), epochs=given.epochs)
    if given.part in ("rank", "both"):
        graph, embedding = trained(runner, given.data / "fb15k-237", config)
        table = ranking(runner, graph, embedding, given.limit)
        publish(table, given.workspace / "crop_quality_fb15k237.csv")
    if given.part in ("tasks", "both"):
        graph, embedding = trained(runner, given.data / "ciao", config)
        table = tasks(runner, graph, embedding, tuple(range(given.seeds)))
        publish(table, given.workspace / "crop_quality_ciao.csv")


def trained(runner: Runner, data: Path, config: MedConfig) -> tuple[Graph, Embedding]:
    """One training of a data set, or the one that the workspace has."""
    graph, _ = graph_stage(runner, data, Settings(split=SplitConfig(core=5)))
    say(f"{graph.name}: {len(graph.entities):,} entities, {len(graph.train):,} triples")
    embedding, _ = train_stage(runner, graph, config, Session(resume=True))
    return graph, embedding


def crops(runner: Runner, embedding: Embedding) -> list[tuple[Crop, int]]:
    """Every size in every number type, as loaded from its files, with its bytes on disk."""
    made = []
    for dim in embedding.dims:
        for dtype in DTYPES:
            digest = embedding.manifest.digest[:8] if embedding.manifest else "new"
            folder = runner.workspace.root / "crop_quality" / f"{digest}-{dim}-{dtype}"
            crop = export_crop(embedding.crop(dim), folder, Export(dtype=dtype), REPLACE)
            assert crop.manifest is not None
            made.append((crop, crop.manifest.bytes))
    return made


def ranking(runner: Runner, graph: Graph, embedding: Embedding, limit: int | None) -> pl.DataFrame:
    """Filtered link prediction on the test triples."""
    rows = []
    for crop, size in crops(runner, embedding):
        reports, _ = rank_crop(crop, graph, limit=limit)
        rows.append(_row(crop, size, reports[0].metrics, ("mrr", "hits_at_1", "hits_at_10")))
        say(str(rows[-1]))
    return pl.DataFrame(rows)


def tasks(
    runner: Runner, graph: Graph, embedding: Embedding, seeds: tuple[int, ...]
) -> pl.DataFrame:
    """Labels and recommendations from the users' vectors; means over the seeds of the tasks."""
    source = Path(graph.source)
    labels = read_labels(table_file(source, "labels"))
    label = LabelConfig(column="join_period", controls=False)
    split = split_purchases(table_file(source, "interactions"), SplitConfig(core=5))
    rows = []
    for crop, size in crops(runner, embedding):
        found = label_users(crop, labels, label, seeds=seeds).metrics
        row = _row(crop, size, found, ("accuracy", "f1_macro"))
        report = train_recommender(crop, split, seed=seeds[0]).report
        kept = ("full.ndcg_at_10", "full.hit_at_10", "sampled.ndcg_at_10")
        rows.append(row | {name: report.metrics[name] for name in kept})
        say(str(rows[-1]))
    return pl.DataFrame(rows)


def _row(
    crop: Crop, size: int, metrics: dict[str, float], names: tuple[str, ...]
) -> dict[str, object]:
    facts = {"dim": crop.dim, "dtype": crop.dtype, "bytes": size}
    facts |= {"bytes_per_row": round(size / len(crop.entity_ids), 1)}
    return facts | {name: metrics[name] for name in names}


def publish(table: pl.DataFrame, path: Path) -> None:
    """Print the table and keep it."""
    table.write_csv(path)
    with pl.Config(tbl_rows=-1, tbl_cols=-1, float_precision=4, tbl_hide_dataframe_shape=True):
        print(table)


if __name__ == "__main__":
    start(main)
