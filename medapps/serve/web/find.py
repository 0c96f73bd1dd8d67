"""What of a workspace goes into a page: the newest recommender of each size, and names of items."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from medapps.errors import MedappsError
from medapps.graph.tables import find_table, scan_table
from medapps.recommend.recommender import Recommender
from medapps.report import Report
from medapps.store import Manifest, Workspace

METHOD = "med"
QUALITY = ("ndcg_at_10", "recall_at_10", "hit_at_10")


@dataclass(frozen=True)
class Sized:
    """The recommender of one size and what its report says of it."""

    model: Recommender
    digest: str = ""
    quality: dict[str, float] | None = None
    """Metrics of users with purchases, as the report has them; None without a report."""


@dataclass(frozen=True)
class Found:
    """The recommenders of one data set, smallest size first, with names for its items."""

    sizes: list[Sized]
    data: str = ""
    titles: pl.Series | None = None
    """Name of each item, null where it has none; None without a table of items."""


def find_recommenders(workspace: Workspace) -> Found:
    """The newest recommender of every size, all of the newest one's purchases and kind."""
    made = [
        (manifest.created, folder, manifest)
        for folder, manifest in workspace.manifests("recommender")
        if manifest.about.get("method") == METHOD and manifest.about.get("model") != "ncf-paper"
    ]
    if not made:
        raise MedappsError(
            f"The workspace {workspace.root} holds no recommender that a page can run.",
            fix="Make one for each size: medapps recommend --dim 10, medapps recommend --dim 100.",
        )
    made.sort(key=lambda found: found[:2])
    newest = made[-1][2]
    chosen = {
        int(manifest.about["dim"]): (folder, manifest)
        for _, folder, manifest in made
        if _family(manifest) == _family(newest)
    }
    sizes, data = [], ""
    for _, (folder, manifest) in sorted(chosen.items()):
        report = _report(workspace, folder)
        data = report.data if report else data
        quality = {n: report.metrics[f"full.{n}"] for n in QUALITY} if report else None
        sizes.append(Sized(Recommender.load(folder), manifest.digest, quality))
    return Found(sizes, data, _titles(workspace, newest, sizes[0].model))


def _family(manifest: Manifest) -> tuple[Any, Any]:
    return manifest.about.get("model"), manifest.parents.get("split")


def _report(workspace: Workspace, recommender: Path) -> Report | None:
    folder = workspace.finished("report", recommender.name)
    report = Report.load(folder) if folder else None
    wanted = [f"full.{name}" for name in QUALITY]
    return report if report and set(wanted) <= set(report.metrics) else None


def _titles(workspace: Workspace, manifest: Manifest, model: Recommender) -> pl.Series | None:
    """Names from a table `items` beside the graph whose purchases the recommender knows."""
    split = manifest.parents.get("split")
    sources = [
        str(graph.about.get("source"))
        for _, graph in workspace.manifests("graph")
        if graph.parents.get("split") == split
    ]
    for source in sources:
        file = find_table(Path(source), ["items"]) if Path(source).is_dir() else None
        found = item_titles(file, model) if file else None
        if found is not None:
            return found
    return None


def item_titles(file: Path, model: Recommender) -> pl.Series | None:
    """The columns `item` and `name` or `title` of a table, in the order of the model's items."""
    frame = scan_table(file)
    schema = frame.collect_schema()
    title = next((name for name in ("name", "title") if name in schema), None)
    items = model.items.names().alias("item").to_frame()
    if title is None or schema.get("item") != items.schema["item"]:
        return None
    names = frame.select("item", title=pl.col(title).cast(pl.String)).unique("item", keep="first")
    return items.join(names.collect(), "item", how="left", maintain_order="left")["title"]
