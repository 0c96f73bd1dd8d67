"""Link prediction as a verb: ranks of every prefix become metrics, reports and retention.

Headline figures average over both sides of every triple; `*_avgrank` are the paper's wording, which
averages the two ranks of a triple first. ARR is the share of queries that no larger prefix loses
once a smaller one has them in its top ten.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from medapps.crop.crop import Crop
from medapps.crop.embedding import Embedding
from medapps.errors import MedappsError
from medapps.evaluate.filtered_ranking import SIDES, Ranks, Tables, rank_tables
from medapps.graph.graph import Graph
from medapps.model.rules import RULES
from medapps.report import Report
from medapps.store import digest_of

HITS = (1, 3, 10)
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class RankOptions:
    """Which triples are ranked, and among what."""

    split: str = "test"
    candidates: int | None = None
    """Rank among a sample of that many entities; None takes all."""
    seed: int = 0
    limit: int | None = None
    """Rank at most about this many triples, evenly spread."""

    def triples(self, graph: Graph) -> np.ndarray:
        """The triples to rank, int32 (n, 3); refuses options that give none."""
        if self.split not in SPLITS:
            raise MedappsError(
                f"There is no split {self.split!r}.", fix=f"Use {', '.join(SPLITS)}."
            )
        for name, value in (("limit", self.limit), ("candidates", self.candidates)):
            if value is not None and value < 1:
                raise MedappsError(f"--{name} takes a number of at least 1, not {value}.")
        found = np.asarray(getattr(graph, self.split))
        if not len(found):
            raise MedappsError(
                f"The graph has no {self.split} triples to rank.",
                fix=f"Put a {self.split}.parquet (head, relation, tail) beside its triples.",
            )
        if self.limit is not None and self.limit < len(found):
            found = found[:: -(-len(found) // self.limit)]
        return found


def rank_embedding(
    embedding: Embedding, graph: Graph, **options: Any
) -> tuple[list[Report], dict[str, Any]]:
    """Rank a split with every trained size; one Report per size, and the figures as one
    dictionary. Options are the fields of `RankOptions`.
    """
    tables = Tables(embedding.entities, embedding.relations, embedding.dims, embedding.specs)
    seconds = embedding.metrics.get("train_seconds", 0.0)
    return _rank(tables, graph, RankOptions(**options), embedding.method, seconds)


def check_ranked(source: Embedding | Crop, graph: Graph) -> None:
    """Refuse what has no relations, or not all entities of the graph."""
    if source.relations is None or len(source.entities) != len(graph.entities):
        raise MedappsError(
            "This crop cannot be ranked: it lacks relations or some of the graph's entities.",
            fix="Make it again with --relations and without --users-only.",
        )


def rank_crop(crop: Crop, graph: Graph, **options: Any) -> tuple[list[Report], dict[str, Any]]:
    """The same for one crop, whoever made it."""
    check_ranked(crop, graph)
    entities = crop.rows(slice(None)) if crop.scale is not None else crop.entities
    tables = Tables(entities, np.asarray(crop.relations), (crop.dim,), (crop.spec,))
    seconds = float(crop.about.get("train_seconds", 0.0))
    return _rank(tables, graph, RankOptions(**options), crop.method, seconds)


def _rank(
    tables: Tables, graph: Graph, options: RankOptions, method: str, train_seconds: float
) -> tuple[list[Report], dict[str, Any]]:
    split, candidates, seed = options.split, options.candidates, options.seed
    entities, relations, dims, specs = (
        tables.entities,
        tables.relations,
        tables.dims,
        tables.specs,
    )
    triples = options.triples(graph)
    ranks = rank_tables(tables, triples, graph.known, candidates=candidates, seed=seed)
    entity, relation, _ = RULES[specs[-1].scorer].REALS
    result: dict[str, Any] = {
        "dims": {},
        "split": split,
        "triples": len(triples),
        "sampled": ranks.candidates is not None,
        "candidates": ranks.candidates or len(entities),
    } | retention(ranks.ranks)
    unit = digest_of(
        {
            "triples": hashlib.sha256(triples.tobytes()).hexdigest(),
            "candidates": ranks.candidates,
            "seed": seed if ranks.candidates else None,
        }
    )
    names = graph.relations.names(np.unique(triples[:, 1]))
    reports = []
    for i, dim in enumerate(dims):
        metrics = rank_metrics(ranks.ranks[i])
        parameters = dim * (len(entities) * entity + len(relations) * relation)
        metrics |= effi(metrics["mrr"], parameters)
        result["dims"][str(dim)] = metrics
        reciprocal = (1 / ranks.ranks[i]).reshape(1, -1)
        reports.append(
            Report(
                task="rank",
                method=method,
                dim=dim,
                data=graph.name,
                seeds=(seed,),
                by_seed={name: [value] for name, value in metrics.items()},
                units={"mrr": reciprocal.astype(np.float32)}
                | {
                    f"hits_at_{k}": (ranks.ranks[i].reshape(1, -1) <= k).astype(np.float32)
                    for k in HITS
                },
                unit_digest=unit,
                cost={"train_seconds": train_seconds, "bytes": float(4 * parameters)},
                tables={"by_relation": by_relation(ranks.ranks[i], triples[:, 1], names)},
                details={key: result[key] for key in ("split", "triples", "sampled", "candidates")},
            )
        )
    return reports, result


def rank_metrics(ranks: np.ndarray) -> dict[str, float]:
    """Metrics of ranks (2, triples): both sides, each side, and the averaged-rank variant."""
    out = _figures(ranks, "")
    for side, values in zip(SIDES, ranks, strict=True):
        out |= _figures(values, f"_{side}")
    return out | _figures(ranks.mean(0), "_avgrank")


def _figures(ranks: np.ndarray, suffix: str) -> dict[str, float]:
    out = {f"mrr{suffix}": float((1 / ranks).mean())}
    for k in HITS:
        out[f"hits_at_{k}{suffix}"] = float((ranks <= k).mean())
    return out


def effi(mrr: float, parameters: int) -> dict[str, float]:
    """MRR per million parameters: in millions to one decimal as the paper prints them, and
    exactly.
    """
    millions = parameters / 1e6
    rounded = round(millions, 1)
    return {
        "effi": mrr / (rounded if rounded > 0 else millions),
        "effi_exact": mrr / millions,
        "parameters": float(parameters),
    }


def retention(ranks: np.ndarray, k: int = 10) -> dict[str, float]:
    """Ability retention ratio of ranks (dims, 2, triples) in ascending dims.

    `arr` counts queries that some prefix has in its top k, `arr_all` all queries; `*_triple` take a
    triple's averaged rank. `arr_last_only` is the share that only the largest prefix has, retained
    trivially.
    """
    out: dict[str, float] = {}
    for name, values in (("", ranks.reshape(len(ranks), -1)), ("_triple", ranks.mean(1))):
        hit = values <= k  # (dims, queries)
        some = hit.any(0)
        kept = some & (hit[1:] >= hit[:-1]).all(0)
        out[f"arr{name}"] = float(kept.sum() / max(1, some.sum()))
        out[f"arr_all{name}"] = float(kept.mean())
        out[f"arr_last_only{name}"] = float((some & ~hit[:-1].any(0)).sum() / max(1, some.sum()))
    return out


def ranks_of(report: Report) -> np.ndarray:
    """float64 (2, triples): the ranks that a report of link prediction was made of.

    Ranks are whole or half; as float32 reciprocals they stay apart up to a few millions.
    """
    reciprocal = np.asarray(report.units["mrr"], np.float64).reshape(2, -1)
    return np.round(2 / reciprocal) / 2


def by_relation(ranks: np.ndarray, relation: np.ndarray, names: pl.Series) -> pl.DataFrame:
    """One row per relation: triples, and MRR and Hit@10 of each side and both."""
    _, inverse, counts = np.unique(relation, return_inverse=True, return_counts=True)
    columns: dict[str, Any] = {"relation": names, "triples": counts}
    for side, values in zip(SIDES, ranks, strict=True):
        columns[f"mrr_{side}"] = np.bincount(inverse, 1 / values) / counts
        columns[f"hits_at_10_{side}"] = np.bincount(inverse, values <= 10) / counts
    columns["mrr"] = (columns["mrr_head"] + columns["mrr_tail"]) / 2
    columns["hits_at_10"] = (columns["hits_at_10_head"] + columns["hits_at_10_tail"]) / 2
    return pl.DataFrame(columns).sort("triples", descending=True, maintain_order=True)


def mean_mrr(ranks: Ranks) -> dict[int, float]:
    """MRR of every size."""
    return {dim: float((1 / ranks.ranks[i]).mean()) for i, dim in enumerate(ranks.dims)}
