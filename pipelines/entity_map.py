"""Do entities of one kind lie together? t-SNE maps at several sizes, and figures to test them by.

    python pipelines/entity_map.py DATA/fb15k-237 --config configs/rotate_fb15k237.yaml \\
        --set train.dims=[10,100,600,640] --methods med dualde ext-v --plot entity_map.png
    python pipelines/entity_map.py DATA/ciao --labels helpfulness_level --dims 10 100      (users)

The domain of an entity is the first path component of the relations that it heads, here the most
frequent one of those asked for; with --labels the classes are labels of users. Silhouette and the
share of the ten nearest neighbours that have the same class (purity) are measured on the vectors as
they are; t-SNE sees them standardised. A student as large as its teacher is the teacher (dt).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from script import options, runner_of, settings_of, spread, start, table

import medapps as ma
from medapps.crop.crop import Crop
from medapps.crop.embedding import Embedding
from medapps.settings import Settings
from medapps.stages import Runner, graph_stage
from medapps.study.measure import sources

DOMAINS = ("organization", "sports", "location", "music")
NEIGHBOURS, PERPLEXITY = 10, 30.0


@dataclass(frozen=True)
class Sample:
    """The entities that are looked at."""

    ids: np.ndarray
    """int64 (k,)."""
    classes: np.ndarray
    """(k,): the name of each one's class."""


@dataclass(frozen=True)
class Panel:
    """A method at a size: its figures per seed, and the vectors of the first seed."""

    method: str
    size: str
    """Its dim, and dt where the teacher stands in."""
    silhouette: list[float]
    purity: list[float]
    vectors: np.ndarray
    """float32 (k, width)."""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--methods", nargs="+", default=["med", "dualde", "ext-v"])
    parser.add_argument("--dims", type=int, nargs="+", default=[10, 100, 600])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the trainings")
    parser.add_argument("--labels", default=None, help="column of labels, in place of domains")
    parser.add_argument("--classes", nargs="+", default=None, help="else four domains, or all")
    parser.add_argument("--each", type=int, default=250, help="entities per class")
    given = parser.parse_args()
    runner, settings = runner_of(given), settings_of(given, given.data)
    graph, _ = graph_stage(runner, given.data, settings)
    if given.labels:
        kinds = labelled(graph, given.labels, given.classes)
    else:
        kinds = domains(graph, given.classes or DOMAINS)
    sample = drawn(kinds, given.each)
    panels = [
        panel
        for method in given.methods
        for panel in looked_at(runner, graph, settings, method, given.dims, given.seeds, sample)
    ]
    counts = sorted(zip(*np.unique(sample.classes, return_counts=True), strict=True))
    chance = sum((count / len(sample.ids)) ** 2 for _, count in counts)
    title = f"{graph.name}, {settings.train.scorer}"
    print(f"**{title}**: {', '.join(f'{count} {name}' for name, count in counts)}\n")
    rows = [
        [p.method, p.size, spread(p.silhouette, 3), spread(p.purity, 3), str(len(p.purity))]
        for p in panels
    ]
    print(table(["method", "dim", "silhouette", "10-NN purity", "seeds"], rows))
    print(f"\nNeighbours drawn at random would have a purity of {chance:.3f}.")
    if given.plot:
        draw(panels, sample, len(given.methods), title, given.plot)


def domains(graph: ma.Graph, names: Sequence[str]) -> pl.DataFrame:
    """`id`, `class` of every entity that heads a relation of these domains in training."""
    relations = graph.relations.names(np.arange(len(graph.relations))).cast(pl.String)
    first = relations.str.strip_chars_start("/").str.split("/").list.first()
    train = np.asarray(graph.train)
    frame = pl.DataFrame({"id": train[:, 0], "class": first.gather(train[:, 1])})
    counts = frame.filter(pl.col("class").is_in(list(names))).group_by("id", "class").len()
    ordered = counts.sort("id", "len", "class", descending=[False, True, False])
    return ordered.unique("id", keep="first", maintain_order=True).select("id", "class")


def labelled(graph: ma.Graph, column: str, names: Sequence[str] | None) -> pl.DataFrame:
    """`id`, `class` of every user of the graph with a label in `column`, as text."""
    labels = ma.read_labels(graph.source, graph).select("user", pl.col(column).cast(pl.String))
    ids = pl.Series("id", graph.entities.ids(labels["user"]))
    frame = pl.DataFrame({"id": ids, "class": labels[column]}).drop_nulls()
    frame = frame.filter(pl.col("id") >= 0).sort("id")
    return frame if names is None else frame.filter(pl.col("class").is_in(list(names)))


def drawn(kinds: pl.DataFrame, each: int) -> Sample:
    """At most `each` entities of every class, always the same ones."""
    if kinds["class"].n_unique() < 2:
        raise ma.MedappsError(
            "Fewer than two classes have entities.", fix="Name others: --classes A B."
        )
    draws = np.random.default_rng(0)
    ids, classes = [], []
    for (name,), group in kinds.sort("class", "id").group_by("class", maintain_order=True):
        few = min(each, len(group))
        ids.append(np.sort(draws.choice(group["id"].to_numpy(), few, replace=False)))
        classes += [name] * few
    return Sample(np.concatenate(ids).astype(np.int64), np.array(classes))


def looked_at(
    runner: Runner,
    graph: ma.Graph,
    settings: Settings,
    method: str,
    dims: Sequence[int],
    seeds: Sequence[int],
    sample: Sample,
) -> list[Panel]:
    """A method at every size."""
    from sklearn.metrics import silhouette_score

    found: dict[int, list[np.ndarray]] = {dim: [] for dim in dims}
    names: dict[int, str] = {}
    for seed in seeds:
        made = sources(runner, graph, settings, method, dims, seed)
        crops = [each.crop(dim) for each in made if isinstance(each, Embedding) for dim in dims]
        for dim, crop in zip(dims, crops or made, strict=True):
            assert isinstance(crop, Crop)
            found[dim].append(crop.rows(sample.ids))
            names[dim] = str(dim) if crop.method == method else f"{dim} ({crop.method})"
    return [
        Panel(
            method,
            names[dim],
            [float(silhouette_score(vectors, sample.classes)) for vectors in several],
            [purity(vectors, sample.classes) for vectors in several],
            several[0],
        )
        for dim, several in found.items()
    ]


def purity(vectors: np.ndarray, classes: np.ndarray, k: int = NEIGHBOURS) -> float:
    """Mean share of the k nearest others (Euclidean) that have the same class."""
    from sklearn.neighbors import NearestNeighbors

    near = NearestNeighbors(n_neighbors=k).fit(vectors).kneighbors(return_distance=False)
    return float((classes[near] == classes[:, None]).mean())


def flat_map(vectors: np.ndarray) -> np.ndarray:
    """float32 (k, 2): t-SNE of the standardised vectors, from their principal axes."""
    from sklearn.manifold import TSNE
    from sklearn.preprocessing import StandardScaler

    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    tsne = TSNE(perplexity=perplexity, init="pca", random_state=0)
    return np.asarray(tsne.fit_transform(StandardScaler().fit_transform(vectors)))


def draw(panels: Sequence[Panel], sample: Sample, rows: int, title: str, path: Path) -> None:
    """A grid of maps: a row per method, a column per size."""
    from matplotlib.figure import Figure

    columns = len(panels) // rows
    figure = Figure(figsize=(3.2 * columns, 3.3 * rows + 0.5), layout="constrained")
    figure.suptitle(title)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, panel in zip(grid, panels, strict=True):
        points = flat_map(panel.vectors)
        for name in np.unique(sample.classes):
            own = sample.classes == name
            axes.scatter(points[own, 0], points[own, 1], s=4, label=str(name))
        figures = f"silhouette {panel.silhouette[0]:.3f}, purity {panel.purity[0]:.3f}"
        axes.set_title(f"{panel.method}, {panel.size}\n{figures}", fontsize="small")
        axes.set(xticks=[], yticks=[])
    handles, names = grid[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), markerscale=3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    start(main)
