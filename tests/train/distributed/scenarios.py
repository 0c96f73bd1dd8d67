"""What every rank of a test launch does: trainings of 20 steps, watched, and refusals.

    torchrun -m tests.train.distributed.scenarios FOLDER

Rank 0 leaves FOLDER/WORLD.json and the embeddings in FOLDER/WORLD/.
"""

from __future__ import annotations

import faulthandler
import json
import shutil
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

import medapps.train.med as training
from medapps.errors import Interrupted, MedappsError
from medapps.graph.ids import IdMap
from medapps.train.config import MedConfig, paper
from medapps.train.distributed.group import Group, joined
from medapps.train.distributed.train import check_processes, train_sharded
from medapps.train.med import MedStep
from medapps.train.session import Session
from tests.train.conftest import make_graph

GRAPH = make_graph()
SMALL = {"dims": (4, 16), "epochs": 2, "batch": 28, "chunk": 16, "negatives": 16, "margin": 1.0}
QUIET = {"threads": 1, "every": 1, "lr": 0.1}
RARE = {"own_answer": 0.3, "positive_weights": "prob", "negative_weights": "smaller"}
CONFIGS = {
    "usual": MedConfig(**SMALL, **QUIET),
    "stages": MedConfig(**SMALL, **QUIET, dlw="literal", patience=50),
    "rare": MedConfig(**SMALL, **QUIET, **RARE),
    "mutual": MedConfig(**SMALL, **QUIET, ml_down=1.0, ml_up=0.5),
    "paper": paper(**SMALL | {"chunk": 20}, threads=1),
    "adam": MedConfig(**SMALL, **QUIET | {"lr": 0.01}, optimiser="lazy_adam"),
    "pairre": MedConfig(**SMALL, **QUIET, scorer="pairre"),
    "kept": MedConfig(
        **SMALL, **QUIET | {"lr": 0.05}, scorer="pairre", keep_length=True, relation_rate=0.5
    ),
    "bf16": MedConfig(**SMALL, **QUIET, table="bf16"),
    "lonely": MedConfig(**SMALL | {"batch": len(GRAPH.train) // 4}, **QUIET | {"lr": 0.05}),
}
"""The last one has fewer positives than ranks in its last batch."""
SEED = 3
"""With 0, relation 4 of `pairre` gets gradients that all but cancel: changing start values by one
rounding then moves it by 4e-5 on one rank too, here by 6e-7.
"""
WIRED = ("counts", "ids", "rows", "gradients", "relations")


@contextmanager
def watched():
    """Losses of every step, what was sent during each of them, and how many rows are here."""
    losses: list[list[float]] = []
    sent: list[dict[str, float]] = []
    rows: set[int] = set()

    class Watched(MedStep):
        def __call__(self, batch, models, lr, count, *, value):
            group, model = getattr(self.engine.group, "group", None), self.engine.model
            before = Counter(group.sent) if group else Counter()
            ei, ml = super().__call__(batch, models, lr, count, value=True)
            losses.append([*ei.tolist(), float(ml)])
            rows.update(len(held) for held in model.entity_optimiser.state.values())
            rows.add(len(model.entities))
            if group:
                sent.append({key: group.sent[key] - before[key] for key in WIRED})
            return (ei if value else None), ml

    plain, training.MedStep = training.MedStep, Watched
    try:
        yield losses, sent, rows
    finally:
        training.MedStep = plain


def stop_after(steps: int):
    left = iter(range(steps - 1))
    return lambda: next(left, None) is None


def refusal(work) -> str:
    """The sentence with which something is refused."""
    try:
        work()
    except MedappsError as error:
        return str(error)
    return "NOT REFUSED"


def main(folder: Path) -> None:
    with joined("cpu") as group:
        out = folder / str(group.world)
        result: dict = {"losses": {}, "sent": {}, "rows": {}, "refused": {}}
        for name, config in CONFIGS.items():
            with watched() as (losses, sent, rows):
                train_sharded(
                    group, GRAPH, config, out / name, Session(SEED, checkpoint_dir=out / "state")
                )
            result["losses"][name] = losses
            result["sent"][name] = group.gather(sent)
            result["rows"][name] = group.gather(sorted(rows))
            group.gather(None)
            if group.rank == 0:
                shutil.rmtree(out / "state", ignore_errors=True)
        checkpoints(group, folder, out, result)
        texts = group.gather(result["refused"])
        result["refused"] = {name: [text[name] for text in texts] for name in texts[0]}
        if group.rank == 0:
            (folder / f"{group.world}.json").write_text(json.dumps(result))


def checkpoints(group: Group, folder: Path, out: Path, result: dict) -> None:
    """Two ranks break off after 13 steps; every launch goes on from there, or is refused."""
    config, left = CONFIGS["stages"], folder / "left"
    if group.world == 2:
        try:
            train_sharded(
                group,
                GRAPH,
                config,
                out / "none",
                Session(SEED, checkpoint_dir=left, stop=stop_after(13)),
            )
        except Interrupted:
            result["interrupted"] = True

    def go_on(change: str, graph=GRAPH, config=config) -> None:
        state = folder / f"{change}{group.world}"
        if group.rank == 0:
            shutil.copytree(left, state)
            if change == "missing":
                next((state / "last").glob("shard_00001*")).unlink()
            if change == "altered":
                file = next((state / "last").glob("shard_00000*"))
                file.write_bytes(file.read_bytes()[:-1] + b"x")
        group.gather(None)
        with watched() as (losses, _, _):
            train_sharded(
                group, graph, config, out / change, Session(SEED, checkpoint_dir=state, resume=True)
            )
        result["losses"][change] = losses

    go_on("resumed")
    changed = replace(GRAPH, train=GRAPH.train[:-1])
    wide = config.changed(dims=(4, 20))
    refused = result["refused"]
    refused["missing"] = refusal(lambda: go_on("missing"))
    refused["altered"] = refusal(lambda: go_on("altered"))
    refused["graph"] = refusal(lambda: go_on("graph", graph=changed))
    refused["dims"] = refusal(lambda: go_on("dims", config=wide))
    if group.world > 1:
        mine = config.changed(lr=0.1 * (1 + group.rank))
        refused["configs"] = refusal(lambda: check_processes(group, GRAPH, mine, 0, False))
        seeds = refusal(lambda: check_processes(group, GRAPH, config, group.rank, False))
        refused["seeds"] = seeds
        other = changed if group.rank == group.world - 1 else GRAPH
        refused["graphs"] = refusal(lambda: check_processes(group, other, config, 0, False))
        tiny = replace(GRAPH, entities=IdMap.of(GRAPH.relations.names()[:1]))
        refused["tiny"] = refusal(lambda: check_processes(group, tiny, config, 0, False))
        there = folder / f"here{group.rank}"
        refused["folders"] = refusal(
            lambda: train_sharded(
                group, GRAPH, config, there / "none", Session(checkpoint_dir=there)
            )
        )


if __name__ == "__main__":
    faulthandler.dump_traceback_later(220, exit=True)
    np.seterr(all="raise", under="ignore")
    main(Path(sys.argv[1]))
