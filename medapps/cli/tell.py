"""What the task commands say and write: keys for scripts, tables for people, files by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from medapps.crop.idlist import read_ids
from medapps.crop.service import Source
from medapps.errors import MedappsError
from medapps.report import Report
from medapps.store import refuse_output, replacing

_SUFFIXES = (".parquet", ".csv", ".tsv")


def label_values(report: Report) -> dict[str, Any]:
    """The stable keys of `medapps label --json`."""
    details = report.details
    return {
        "dim": report.dim,
        "method": report.method,
        "label": details["label"],
        "classes": details["classes"],
        "users": details["users"],
        "missing_users": details["missing_users"],
        **report.metrics,
        "majority": details["majority"],
        "interval": details["interval"],
        "beside": details["beside"],
    }


def recommend_values(report: Report) -> dict[str, Any]:
    """The stable keys of `medapps recommend --json`: full.ndcg_at_10 becomes full: ndcg_at_10."""
    details = report.details
    values: dict[str, Any] = {"dim": report.dim, "method": report.method}
    for name, value in report.metrics.items():
        part, _, metric = name.partition(".")
        values.setdefault(part, {})[metric] = value
    values |= {key: details[key] for key in ("users", "items", "missing_users", "cold_users")}
    return values | {"beside": details["beside"], "notes": details["notes"]}


def metric_rows(report: Report) -> pl.DataFrame:
    """One line per kind of user and one per reference, as people read them."""
    shown = ("ndcg_at_5", "ndcg_at_10", "hit_at_10", "mrr")
    names = {"full": "all users", "cold": "users without interactions", "sampled": "99 negatives"}
    lines = []
    rivals = {report.method: report.metrics, **report.details["beside"]}
    for rival, metrics in rivals.items():
        for part in dict.fromkeys(name.partition(".")[0] for name in metrics):
            title = names.get(part) or f"users with at most {part.removeprefix('few')}"
            values = {m.replace("_at_", "@"): metrics.get(f"{part}.{m}") for m in shown}
            lines.append({"method": rival, "ranking": title} | values)
    return pl.DataFrame(lines)


@dataclass(frozen=True)
class Wanted:
    """A file of users, and the table that is asked for them."""

    users: Path
    out: Path
    force: bool


def wanted(
    option: str,
    users: Path | None,
    out: Path | None,
    *,
    force: bool = False,
    inputs: Iterable[Path | None] = (),
) -> Wanted:
    """What is asked for; refused before the work begins when it could not be written."""
    if users is None or out is None:
        raise MedappsError(f"{option} and --out belong together.", fix="Give both.")
    if out.suffix not in _SUFFIXES:
        raise MedappsError(
            f"Cannot tell the format of {out}.", fix="End the name in .parquet, .csv or .tsv."
        )
    refuse_output(out, force=force, inputs=[users, *inputs])
    return Wanted(users, out, force)


def predict_users(model: Path, source: Source | None, asked: Wanted) -> dict[str, Any]:
    """Label the users in a file and write a table."""
    from medapps.label.model import LabelModel

    assert source is not None
    users, out = asked.users, asked.out
    table = LabelModel.load(model).predict(source, read_ids(users).alias("user"))
    write_table(table, out, force=asked.force)
    return {"predicted": len(table), "unknown": int((~table["in_graph"]).sum()), "out": out}


def recommend_users(
    model: Path, source: Source | None, asked: Wanted, k: int, explain: bool
) -> dict[str, Any]:
    """Recommend for the users in a file and write a table."""
    from medapps.recommend.model import Recommender

    recommender = Recommender.load(model)
    table = recommender.recommend_for(read_ids(asked.users).alias("user"), k, source)
    if explain:
        reasons = recommender.explain(table).group_by("user", "item", maintain_order=True)
        table = table.join(
            reasons.agg(pl.col("neighbour").alias("neighbours"), pl.col("similarity")),
            on=["user", "item"],
            how="left",
            maintain_order="left",
        )
    write_table(table, asked.out, force=asked.force)
    return {"recommended": len(table), "k": k, "out": asked.out}


def export_bundle(model: Path, form: str, folder: Path, *, force: bool = False) -> dict[str, Any]:
    """Write what a device needs to recommend without torch."""
    if form != "onnx":
        raise MedappsError(f"There is no export {form!r}.", fix="Use --export onnx.")
    from medapps.recommend.model import Recommender
    from medapps.serve.onnx import export_onnx

    return {"bundle": folder} | export_onnx(Recommender.load(model), folder, force=force)


def write_table(table: pl.DataFrame, out: Path, *, force: bool = False) -> None:
    """Write Parquet, CSV or TSV by the ending of the name; lists become text in the latter."""
    with replacing(out, force=force) as part:
        if out.suffix == ".parquet":
            table.write_parquet(part)
            return
        lists = [name for name, kind in table.schema.items() if isinstance(kind, pl.List)]
        flat = table.with_columns(
            pl.col(name).cast(pl.List(pl.String)).list.join(";") for name in lists
        )
        flat.write_csv(part, separator="," if out.suffix == ".csv" else "\t")
