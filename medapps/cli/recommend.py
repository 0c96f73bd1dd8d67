"""`medapps recommend`: which product a user takes next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from medapps.cli.common import Job, Result, Setting, command
from medapps.cli.options import Data, Dim, Embedding, Out, Seeds, check_output

if TYPE_CHECKING:
    import polars as pl

    from medapps.recommend.ncf_paper.model import NcfRecommender
    from medapps.recommend.recommender import Recommender
    from medapps.report import Report
    from medapps.stages.tasks import TaskInputs

ALL = Path("all")


@command(
    "recommend",
    example="medapps recommend --dim 10 --user user:0000001",
    settings={
        "--model": Setting(
            "recommend.model", "ncf (default), graph: the embedding's own score, or ncf-paper."
        ),
        "--references": Setting(
            "recommend.references", "Measure these too, e.g. popularity,itemknn,ease,als,bpr.", list
        ),
        "--epochs": Setting("recommend.ncf.epochs", "Most epochs of ncf-paper.", int),
    },
)
def recommend(
    job: Job,
    dim: Dim = 10,
    interactions: Annotated[
        Path | None, typer.Option(help="Table of interactions; else the one beside the graph.")
    ] = None,
    data: Data = None,
    method: Annotated[
        str, typer.Option(help="med, a baseline, or none, random, shuffled, oracle.")
    ] = "med",
    embedding: Embedding = None,
    seeds: Seeds = 3,
    user: Annotated[
        str | None, typer.Option(help="Show the list of one user, with reasons.")
    ] = None,
    users: Annotated[
        Path | None, typer.Option(help="Lists for these users: a file of ids, or all.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Items per user.")] = 10,
    out: Out = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Give reasons in the lists of --users.")
    ] = False,
    export: Annotated[
        str | None, typer.Option(metavar="onnx", help="Also write a device bundle (ncf-paper).")
    ] = None,
    bundle: Annotated[Path | None, typer.Option(help="Folder of the bundle.")] = None,
) -> Result:
    """Train and test a recommender on a crop; then lists for one user, some, or all."""
    settings = job.settings()
    from medapps.cli.tables import facts, rows
    from medapps.errors import MedappsError
    from medapps.recommend.recommender import load_recommender
    from medapps.stages.tasks import Wanted, recommend_stage, task_inputs

    if export not in (None, "onnx"):
        raise MedappsError(f"There is no export {export!r}.", fix="Use --export onnx.")
    if export is not None and settings.recommend.model != "ncf-paper":
        raise MedappsError(
            "The ONNX bundle holds the network of the NCF paper.", fix="Add --model ncf-paper."
        )
    if explain and users is None:
        raise MedappsError("--explain needs --users and --out.", fix="Give both.")
    wanted = Wanted(method, dim, data, interactions, embedding, job.seed, seeds)
    inputs = task_inputs(job.runner, settings, "interactions", wanted)
    output = check_output(job, "--users", users, out, (inputs.table, *wanted.files))
    report, folder = recommend_stage(job.runner, inputs, settings.recommend)
    values: dict[str, Any] = {"artifact": folder, "data": inputs.data, **_values(report)}
    show: list[Any] = [rows(_metrics(report)), facts(values)]
    place = job.workspace.folder("recommender", folder.name)
    if output is not None:
        made = load_recommender(place)
        asked = made.users.names() if users == ALL else output.ids(made.users.dtype)
        unknown = output.unknown(asked, made.users.ids(asked) >= 0)
        table = _with_names(made.recommend(asked.alias("user"), k), inputs)
        output.write(_explained(made, table) if explain else table)
        values |= {"recommended": len(table), "unknown": unknown, "k": k, "out": out}
    if user is not None:
        table = _one(load_recommender(place), user, k, inputs)
        values["recommendations"] = table.to_dicts()
        show = [rows(table)]
    if export is not None:
        from medapps.recommend.ncf_paper.model import NcfRecommender
        from medapps.serve.onnx import export_onnx

        where = bundle or job.workspace.folder("bundle", folder.name)
        force = job.force or bundle is None
        values |= {"bundle": where} | export_onnx(NcfRecommender.load(place), where, force=force)
    return Result(values, [*show, "Next: medapps compare."])


def _one(made: Recommender | NcfRecommender, name: str, k: int, inputs: TaskInputs) -> pl.DataFrame:
    """The list of one user with names and reasons; refuses a user that nobody knows."""
    import polars as pl

    from medapps.crop.idlist import typed
    from medapps.errors import MedappsError
    from medapps.graph.graph import path_words

    asked = typed(pl.Series("user", [name]), made.users.dtype)
    if made.users.ids(asked)[0] < 0:
        raise MedappsError(
            f"Nobody knows the user {name!r}: neither purchases nor graph.",
            fix=f"Users are called like {made.users.names()[0]!r}.",
        )
    table = made.recommend(asked, k)
    reasons = made.why(table).group_by("item", "kind", maintain_order=True)
    words = reasons.agg(pl.col("reason").str.join(", ")).pivot("kind", index="item")
    table = _with_names(table, inputs).join(words, "item", how="left", maintain_order="left")
    if inputs.graph is not None:
        table = table.with_columns(path=pl.Series(path_words(inputs.graph, asked, table["item"])))
    titles = {"purchase": "like your", "neighbour": "taken by"}
    return table.drop("user", "in_graph", "has_purchases").rename(titles, strict=False)


def _with_names(table: pl.DataFrame, inputs: TaskInputs) -> pl.DataFrame:
    """The lists with the names of items, where a table `items` with item and name stands beside."""
    import polars as pl

    from medapps.graph.tables import find_table, scan_table

    file = find_table(inputs.table.parent, ["items"])
    if file is None:
        return table
    frame = scan_table(file)
    title = next((n for n in ("name", "title") if n in frame.collect_schema()), None)
    if title is None or frame.collect_schema().get("item") != table.schema["item"]:
        return table
    names = frame.select("item", name=pl.col(title).cast(pl.String)).unique("item").collect()
    return table.join(names, "item", how="left", maintain_order="left")


def _explained(made: Recommender | NcfRecommender, table: pl.DataFrame) -> pl.DataFrame:
    """The lists with reasons: purchases most alike, and the nearest users who took the item."""
    import polars as pl

    keys = ["user", "item"]
    reasons = made.why(table).group_by(*keys, "kind", maintain_order=True)
    wide = reasons.agg("reason").pivot("kind", index=keys, values="reason")
    names = {"purchase": "like_purchases", "neighbour": "neighbours"}
    wide = wide.rename(names, strict=False)
    missing = [pl.lit(None, pl.List(pl.String)).alias(n) for n in names.values() if n not in wide]
    return table.join(wide.with_columns(missing), keys, how="left", maintain_order="left")


def _values(report: Report) -> dict[str, Any]:
    """The stable keys of --json: full.ndcg_at_10 becomes full: ndcg_at_10."""
    values: dict[str, Any] = {"dim": report.dim, "method": report.method}
    for name, value in report.metrics.items():
        part, _, metric = name.partition(".")
        values.setdefault(part, {})[metric] = value
    kept = ("model", "users", "items", "missing_users", "cold_users", "notes", "parts")
    references = {
        name: {key.removeprefix("full."): value for key, value in found.items()}
        for name, found in report.details.get("references", {}).items()
    }
    facts = {key: report.details[key] for key in kept if key in report.details}
    return values | facts | {"references": references}


def _metrics(report: Report) -> pl.DataFrame:
    """One line per method and kind of user, as people read them."""
    import polars as pl

    shown = ("ndcg_at_10", "recall_at_10", "hit_at_10")
    names = {
        "full": "users with purchases",
        "cold": "users without purchases",
        "sampled": "99 negatives",
    }
    lines = []
    everyone = {report.method: report.metrics, **report.details.get("references", {})}
    for method, metrics in everyone.items():
        parts = dict.fromkeys(name.partition(".")[0] for name in metrics if "." in name)
        for part in parts:
            title = names.get(part) or f"users with at most {part.removeprefix('few')}"
            values = {m.replace("_at_", "@"): metrics.get(f"{part}.{m}") for m in shown}
            lines.append({"method": method, "ranking": title} | values)
    return pl.DataFrame(lines)
