"""An embedding that grows: old rows stay bit for bit, new ones find their place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from medapps.crop.embedding import Embedding
from medapps.errors import Interrupted, MedappsError
from medapps.evaluate.link_prediction import rank_embedding
from medapps.graph.graph import Graph
from medapps.graph.grow import grow_graph, merged
from medapps.graph.ids import IdMap
from medapps.store import Provenance
from medapps.train.config import MedConfig
from medapps.train.grow import Replay, config_of, grow
from medapps.train.med import train_med
from medapps.train.order import Shuffle
from tests.train.conftest import make_graph

SETTINGS = {
    "dims": (4, 16), "epochs": 30, "batch": 64, "chunk": 32, "negatives": 16, "margin": 1.0,
    "lr": 0.1, "threads": 1,
}  # fmt: skip


def halves(side: int = 8, late: int = 6) -> tuple[Graph, Graph, Graph]:
    """The grid without some of its points, what is said of these, and both together."""
    whole = make_graph(side)
    count = len(whole.entities)
    new = np.zeros(count, bool)
    new[np.random.default_rng(3).choice(count, late, replace=False)] = True
    parts: dict[str, dict[str, np.ndarray]] = {"old": {}, "new": {}}
    place = np.cumsum(~new) - 1
    for split in ("train", "valid", "test"):
        rows = getattr(whole, split)
        touches = new[rows[:, 0]] | new[rows[:, 2]]
        parts["new"][split] = rows[touches]
        kept = rows[~touches]
        parts["old"][split] = np.stack(
            [place[kept[:, 0]], kept[:, 1], place[kept[:, 2]]], 1
        ).astype(np.int32)
    ids = np.flatnonzero(~new)
    everyone = np.arange(len(ids), dtype=np.int32)
    old = replace(whole, entities=whole.entities.subset(ids), users=everyone, **parts["old"])
    late_part = replace(whole, **parts["new"])
    return old, late_part, merged(old, late_part)


@pytest.fixture(scope="module", params=["fp32", "bf16", "mmap"])
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Embedding, Graph]:
    old, _, both = halves()
    torch.set_num_threads(1)
    config = MedConfig(**SETTINGS, table=request.param)
    made = train_med(old, config)
    folder = tmp_path_factory.mktemp("grow") / request.param
    provenance = Provenance(config=config.plain() | {"seed": 0})
    return made.save(folder, provenance), both


def test_old_rows_stay_bit_for_bit_and_new_ones_are_appended(
    trained: tuple[Embedding, Graph], tmp_path: Path
) -> None:
    before, both = trained
    made = grow(before, both, checkpoint_dir=tmp_path / "c")
    old = len(before.entities)
    assert made.entities.dtype == before.entities.dtype and len(made.entities) == old + 6
    assert np.asarray(made.entities[:old]).tobytes() == np.asarray(before.entities).tobytes()
    assert made.relations.tobytes() == np.asarray(before.relations).tobytes()
    assert made.entity_ids.names(np.arange(old)).equals(before.entity_ids.names())
    for dim in before.dims:  # what a device holds is what the grown crop says of the same names
        device, grown = before.crop(dim), made.crop(dim)
        names = device.entity_ids.names()
        assert np.array_equal(device.vectors(names)[0], grown.vectors(names)[0])
    loaded = made.save(tmp_path / "saved")
    assert np.asarray(loaded.entities).tobytes() == np.asarray(made.entities).tobytes()
    assert loaded.about["parent"] == before.manifest.digest


def test_a_growth_that_was_cut_off_goes_on_bit_for_bit(
    trained: tuple[Embedding, Graph], tmp_path: Path
) -> None:
    before, both = trained
    whole = grow(before, both, epochs=12)
    calls = iter([0] * 10 + [1])
    with pytest.raises(Interrupted):
        grow(before, both, epochs=12, checkpoint_dir=tmp_path, stop=lambda: next(calls))
    resumed = grow(before, both, epochs=12, checkpoint_dir=tmp_path, resume=True)
    assert np.asarray(resumed.entities).tobytes() == np.asarray(whole.entities).tobytes()


def test_new_entities_are_found_nearly_as_well_as_after_training_again() -> None:
    old, _, both = halves(side=10, late=10)
    config = MedConfig(**SETTINGS | {"epochs": 80})
    before = train_med(old, config)
    count = len(old.entities)
    test = both.test[(both.test[:, 0] >= count) | (both.test[:, 2] >= count)]
    assert len(test) > 8

    def mrr(made: Embedding) -> float:
        reports, _ = rank_embedding(made, replace(both, test=test))
        return reports[-1].metrics["mrr"]

    chance = float((1 / np.arange(1, len(both.entities) + 1)).mean())
    again, grown = mrr(train_med(both, config)), mrr(grow(before, both, config=config))
    assert grown > 0.9 * again > 4 * chance


@pytest.mark.parametrize("scorer", ["rotate", "pairre", "simple"])
def test_other_scorers_grow_too(scorer: str) -> None:
    old, _, both = halves()
    config = MedConfig(**{**SETTINGS, "epochs": 2, "scorer": scorer})
    before = train_med(old, config)
    made = grow(before, both, config=config, epochs=2)
    assert np.array_equal(made.entities[: len(before.entities)], before.entities)
    assert np.isfinite(made.entities).all()


def test_a_new_relation_is_learned_and_old_ones_stay() -> None:
    old, late, _ = halves()
    names = late.relations.names().to_list()
    names[2] = "zoom"  # one relation of the new triples was never seen before
    both = merged(old, replace(late, relations=IdMap.in_order(pl.Series(names))))
    config = MedConfig(**SETTINGS)
    before = train_med(old, config)
    made = grow(before, both, config=config)
    assert made.relation_ids.names()[-1] == "zoom" and len(made.relations) == 7
    assert np.array_equal(made.relations[:6], before.relations)
    start = train_med(both, config.changed(epochs=1)).relations[-1]
    assert not np.array_equal(made.relations[-1], start)


def test_a_refresh_moves_all_rows_from_where_they_are() -> None:
    old, _, both = halves()
    config = MedConfig(**SETTINGS)
    before = train_med(old, config)
    made = grow(before, both, config=config, refresh=True, epochs=1)
    kept = made.entities[: len(before.entities)]
    moved = np.linalg.norm(kept - before.entities, axis=1)
    assert (moved > 0).mean() > 0.9
    length = np.linalg.norm(before.entities, axis=1).mean()
    assert moved.mean() < length  # it did not start anew


def test_nothing_new_is_refused_with_the_way_out() -> None:
    old, _, _ = halves()
    config = MedConfig(**SETTINGS | {"epochs": 1})
    with pytest.raises(MedappsError, match="--refresh"):
        grow(train_med(old, config), old, config=config)


def test_settings_that_would_change_old_rows_are_refused() -> None:
    old, _, both = halves()
    config = MedConfig(**SETTINGS | {"epochs": 1})
    before = train_med(old, config)
    for change in ({"dims": (4, 12)}, {"margin": 2.0}, {"table": "bf16"}):
        with pytest.raises(MedappsError, match="stay when it grows"):
            grow(before, both, config=config.changed(**change))
    with pytest.raises(MedappsError, match="do not begin with"):
        grow(before, make_graph(), config=config)


def test_the_settings_of_a_saved_embedding_come_back(trained: tuple[Embedding, Graph]) -> None:
    before, _ = trained
    table = before.manifest.config["hardware"]["table"]
    assert config_of(before) == MedConfig(**SETTINGS, table=table)


def test_an_epoch_asks_every_new_triple_once_and_some_old_ones_of_new_entities() -> None:
    order = Replay(Shuffle(1000, 100, 16, seed=5), new=130, old=80)
    seen, again = [], set()
    for epoch in range(5):
        fresh, old = [], []
        for step in range(order.steps):
            rows, ((first, last),) = order.rows(epoch, step), order.entities(epoch, step)
            assert last == 100
            (old if first == 80 else fresh).append(rows)
        fresh, old = np.concatenate(fresh), np.concatenate(old)
        assert np.array_equal(np.sort(fresh), np.arange(130))
        assert len(set(old)) == len(old) == pytest.approx(0.2 * 870, abs=16)
        assert old.min() >= 130
        again |= set(old)
        seen.append(fresh)
    assert not np.array_equal(seen[0], seen[1])
    assert len(again) > 860  # others in every epoch


def test_a_triple_that_validates_or_tests_never_comes_to_train() -> None:
    old, late, _ = halves()
    leaking = replace(late, train=np.concatenate([late.train, make_graph().test]))
    both = merged(old, leaking)
    tested = {tuple(row) for row in old.test.tolist()}
    assert tested and not tested & {tuple(row) for row in both.train.tolist()}
    assert both.notes["new_entities"] == 6


def test_ids_of_another_type_are_refused(tmp_path: Path) -> None:
    frame = pl.DataFrame({"head": ["a"], "relation": ["move0"], "tail": ["b"]})
    frame.write_parquet(tmp_path / "new.parquet")
    with pytest.raises(MedappsError, match="mixed with string ids"):
        grow_graph(make_graph(), tmp_path / "new.parquet")
