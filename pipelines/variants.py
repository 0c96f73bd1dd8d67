"""Variants of one training against each other, query by query: ablations, numbers of sub-models.

    python pipelines/variants.py ablation DATA/wn18rr --config configs/wn18rr.yaml
    python pipelines/variants.py ablation DATA/wn18rr --config configs/paper.yaml
    python pipelines/variants.py submodels DATA/wn18rr --config configs/rotate_wn18rr.yaml

Every variant is trained with every seed and ranked on the test triples at the sizes that all of
them have; the first one is what the others are held against (paired tests). Finished trainings are
kept in the workspace, and an interrupted one goes on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import medapps as ma
from medapps.comparison.grid import markdown
from medapps.config import resolve
from medapps.settings import Settings
from medapps.stages import Bench, graph_stage, train_stage

NO_MLM = {"ml_down": 0.0, "ml_up": 0.0, "distil": 0.0}
NO_EIM = {"positive_weights": "uniform", "negative_weights": "uniform"}
NO_DLW = {"dlw": "off"}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "ablation": {
        "med": {},
        "no mutual learning": NO_MLM,
        "no evolution": NO_EIM,
        "no loss weights": NO_DLW,
        "mrl": NO_MLM | NO_EIM | NO_DLW,
    },
    "submodels": {
        "n = 4": {"dims": (10, 40, 160, 640)},
        "n = 16": {"dims": (10, *range(40, 561, 40), 640)},
        "n = 64": {"dims": tuple(range(10, 641, 10))},
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("study", choices=tuple(VARIANTS))
    parser.add_argument("data", type=Path, help="a dataset folder with test triples")
    parser.add_argument("--config", type=Path, default=None, help="its section `train` is the base")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="train.KEY=V")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--limit", type=int, default=None, help="test triples to rank; else all")
    parser.add_argument("--workspace", type=Path, default=Path("workspace"))
    parser.add_argument("--no-track", action="store_true")
    given = parser.parse_args()
    bench = Bench(ma.Workspace(given.workspace), tracked=not given.no_track, say=_say)
    settings = resolve(Settings, file=given.config, sets=given.sets)
    graph, _ = graph_stage(bench, given.data, settings.graph)
    variants = configs(settings.train, VARIANTS[given.study])
    shared = set.intersection(*(set(config.dims) for config in variants.values()))
    reports = []
    for name, config in variants.items():
        for seed in given.seeds:
            reports += measured(bench, graph, name, config, seed, sorted(shared), given.limit)
    print(markdown(ma.compare(reports, reference=next(iter(variants)))))


def configs(base: ma.MedConfig, variants: dict[str, dict[str, Any]]) -> dict[str, ma.MedConfig]:
    """The settings of each variant; those that change nothing are left out."""
    out: dict[str, ma.MedConfig] = {}
    for name, changes in variants.items():
        margin: dict[str, Any] = {}
        if "dims" in changes and isinstance(base.margin, tuple):
            margin = {"margin": base.margin[-1]}  # one margin per dim fits no other dims
        config = ma.MedConfig(**(base.model_dump() | margin | changes))
        if config not in out.values():
            out[name] = config
    return out


def measured(
    bench: Bench,
    graph: ma.Graph,
    name: str,
    config: ma.MedConfig,
    seed: int,
    dims: Sequence[int],
    limit: int | None,
) -> list[ma.Report]:
    """Test ranks of one training at `dims`, under the variant's name."""
    _say(f"{name}, seed {seed}")
    embedding, _ = train_stage(bench, graph, config, seed=seed, resume=True)
    picked = [i for i, dim in enumerate(embedding.dims) if dim in dims]
    some = replace(
        embedding,
        dims=tuple(embedding.dims[i] for i in picked),
        specs=tuple(embedding.specs[i] for i in picked),
    )
    reports, _ = ma.rank_embedding(some, graph, limit=limit)
    return [replace(report, method=name, seeds=(seed,)) for report in reports]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
