"""Variants of one training against each other, query by query: ablations, numbers of sub-models.

    python pipelines/variants.py DATA/wn18rr ablation --config configs/wn18rr.yaml --plot out.png
    python pipelines/variants.py DATA/wn18rr ablation --config configs/paper.yaml
    python pipelines/variants.py DATA/wn18rr submodels --config configs/rotate_wn18rr.yaml

Every variant is trained with every seed and ranked on the test triples at the sizes that all of
them have; the first one is what the others are held against (paired tests). Finished trainings are
kept in the workspace, and an interrupted one goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from script import options, runner_of, say, settings_of, start

import medapps as ma
from medapps.comparison.grid import markdown
from medapps.comparison.write import figures
from medapps.stages import Runner, graph_stage, train_stage
from medapps.train.session import Session

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
    parser = options(__doc__)
    parser.add_argument("study", choices=tuple(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--limit", type=int, default=None, help="test triples to rank; else all")
    given = parser.parse_args()
    runner, settings = runner_of(given), settings_of(given, given.data)
    graph, _ = graph_stage(runner, given.data, settings)
    variants = configs(settings.train, VARIANTS[given.study])
    shared = set.intersection(*(set(config.dims) for config in variants.values()))
    reports = []
    for name, config in variants.items():
        for seed in given.seeds:
            reports += measured(runner, graph, name, config, seed, sorted(shared), given.limit)
    comparison = ma.compare(reports, reference=next(iter(variants)))
    print(markdown(comparison))
    if given.plot:
        _, curve = next(figures(comparison))  # quality over sizes comes first
        curve.savefig(given.plot, dpi=120)


def configs(base: ma.MedConfig, variants: dict[str, dict[str, Any]]) -> dict[str, ma.MedConfig]:
    """The settings of each variant; those that change nothing are left out."""
    out: dict[str, ma.MedConfig] = {}
    for name, changes in variants.items():
        config = base.resized(**({"dims": base.dims} | changes))
        if config not in out.values():
            out[name] = config
    return out


def measured(
    runner: Runner,
    graph: ma.Graph,
    name: str,
    config: ma.MedConfig,
    seed: int,
    dims: Sequence[int],
    limit: int | None,
) -> list[ma.Report]:
    """Test ranks of one training at `dims`, under the variant's name."""
    say(f"{name}, seed {seed}")
    embedding, _ = train_stage(runner, graph, config, Session(seed, resume=True))
    picked = [i for i, dim in enumerate(embedding.dims) if dim in dims]
    some = replace(
        embedding,
        dims=tuple(embedding.dims[i] for i in picked),
        specs=tuple(embedding.specs[i] for i in picked),
    )
    reports, _ = ma.rank_embedding(some, graph, limit=limit)
    return [replace(report, method=name, seeds=(seed,)) for report in reports]


if __name__ == "__main__":
    start(main)
