"""The search for margin, penalty and rate of DT."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from medapps.baselines.config import BaselineConfig, SearchConfig
from medapps.baselines.direct import choose, default_rate, highest, trial_epochs
from medapps.baselines.registry import make_baseline
from medapps.errors import MedappsError
from medapps.train.config import MedConfig
from medapps.train.session import Progress, Session
from medapps.train.tables import Optimiser
from tests.baselines.conftest import make_graph, short


def test_search_takes_the_best_trial_and_states_its_cost(graph, train):
    search = SearchConfig(margins=(0.5, 2.0), rates=(3.0,), further=0, epochs=2, triples=50)
    config = BaselineConfig(search=search)
    crop = make_baseline("dt", graph, 8, config, train=train, seed=3)
    trials, rate = crop.about["search_trials"], default_rate(train, 8)
    tried = {(t["margin"], t["lr"]) for t in trials}
    best = max((t for t in trials if t["lr"] == rate), key=lambda t: t["valid_mrr"])["margin"]
    assert tried == {(1.0, rate), (4.0, rate), (best, 3 * rate)}
    chosen = next(
        t for t in trials if (t["margin"], t["lr"]) == (crop.about["margin"], crop.about["lr"])
    )
    at_best = [t["valid_mrr"] for t in trials if t["margin"] == best]
    assert chosen["valid_mrr"] == max(at_best) and crop.spec.margin == best
    assert crop.about["search_seconds"] == pytest.approx(sum(t["seconds"] for t in trials))
    assert crop.about["train_seconds"] < crop.about["search_seconds"] + crop.about["own_seconds"]
    json.dumps(crop.about)


def test_a_penalty_is_searched_between_margin_and_rate_and_students_take_it(graph):
    train = MedConfig(dims=(4, 8), scorer="simple", penalty=0.5, epochs=1, batch=128, threads=1)
    search = SearchConfig(
        margins=(1.0,), penalties=(0.01,), rates=(2.0,), further=0, epochs=1, triples=50
    )
    config = BaselineConfig(search=search)
    teacher = make_baseline("dt", graph, 8, config, train=train)
    rate, trials = default_rate(train, 8), teacher.about["search_trials"]
    best = max(trials[:2], key=lambda t: t["valid_mrr"])["penalty"]
    tried = [(t["penalty"], t["lr"]) for t in trials]
    assert tried == [(0.25, rate), (0.0025, rate), (best, 2 * rate)]  # MED has two losses
    assert teacher.about["penalty"] == best
    forced = replace(teacher, about=teacher.about | {"penalty": 0.125})
    student = make_baseline("bkd", graph, 4, config, train=train, teacher=forced)
    assert student.about["penalty"] == pytest.approx(0.125 / 2**0.5)  # as the default of 4 to 8


@pytest.mark.parametrize(
    ("peak", "further", "found"),
    [
        (1.0, 4, (1.0, True)),  # between lower ones: nothing more is tried
        (8.0, 4, (8.0, True)),  # 4 and 8 are best at the end, 16 is lower
        (0.25, 4, (0.25, True)),  # the other way
        (64.0, 4, (32.0, False)),  # four steps beyond 2 do not reach it
        (8.0, 0, (2.0, False)),
    ],
)
def test_the_grid_is_extended_while_the_best_value_is_on_its_edge(peak, further, found):
    asked = []

    def by(value: float) -> float:
        asked.append(value)
        return -abs(np.log(value / peak))

    assert highest([1.0, 0.5, 2.0], by, further) == found
    assert max(asked) <= max(2.0, 2 * found[0]) and min(asked) >= min(0.5, found[0] / 2)


def test_a_single_value_is_taken_as_it_is():
    assert highest([3.0], abs, 4) == (3.0, True)
    assert highest([0.0, 0.0], abs, 4) == (0.0, True)  # multiples of a penalty that is not there


def test_trials_of_small_models_are_longer_up_to_the_whole_training():
    train, search = MedConfig(dims=(10, 40, 160, 640), epochs=60), SearchConfig(epochs=5)
    epochs = [trial_epochs(train, dim, search) for dim in (10, 40, 80, 160, 640, 6400)]
    assert epochs == [60, 60, 40, 20, 5, 1]


def test_search_extends_its_grid_and_says_where_it_ended(graph, train):
    search = SearchConfig(margins=(1.0,), rates=(0.01, 0.1), further=2, epochs=2, triples=50)
    choice = choose(graph, train, 8, search, Session())
    rate = default_rate(train, 8)
    tried = [trial["lr"] / rate for trial in choice.trials]
    assert sorted(tried[:3]) == pytest.approx([0.01, 0.1, 1.0])
    assert tried[3] == pytest.approx(10.0)  # a hundredth of a rate learns nothing in two epochs
    assert choice.lr == max(choice.trials, key=lambda t: t["valid_mrr"])["lr"]
    assert choice.at_edge == (("lr",) if choice.lr == max(t["lr"] for t in choice.trials) else ())


def test_a_search_that_was_cut_off_keeps_its_trials(graph, train, tmp_path):
    search = SearchConfig(margins=(0.5, 1.0), rates=(3.0,), further=0, epochs=1, triples=50)
    whole = choose(graph, train, 8, search, Session(searches=tmp_path / "deep"))
    (file,) = (tmp_path / "deep").iterdir()
    kept = json.loads(file.read_text())
    assert kept == list(whole.trials) and len(kept) == 3
    file.write_text(json.dumps([trial | {"seconds": 100.0} for trial in kept[:2]]))
    again = choose(graph, train, 8, search, Session(searches=tmp_path / "deep"))
    assert [t["seconds"] for t in again.trials[:2]] == [100.0, 100.0]  # not made once more
    assert again.trials[2]["valid_mrr"] == kept[2]["valid_mrr"]
    assert (again.margin, again.lr) == (whole.margin, whole.lr)


def test_a_search_says_which_trial_it_is_at(graph):
    search = SearchConfig(margins=(0.5, 1.0), rates=(3.0,), further=0, epochs=24, triples=50)
    heard: list[Progress] = []
    choose(graph, short(epochs=24), 8, search, Session(progress=heard.append))
    assert list(dict.fromkeys(now.part for now in heard)) == ["trial 1", "trial 2", "trial 3"]


def test_trainings_with_several_seeds_share_one_search(graph, train, tmp_path):
    search = SearchConfig(margins=(0.5, 1.0), rates=(3.0,), further=0, epochs=1, triples=50)
    config = BaselineConfig(search=search)
    first, second = (
        make_baseline("dt", graph, 8, config, train=train, seed=seed, searches=tmp_path)
        for seed in (1, 2)
    )
    assert first.about["search_trials"] == second.about["search_trials"]  # their seconds too
    assert len(list(tmp_path.iterdir())) == 1
    assert not np.array_equal(first.entities, second.entities)
    other = SearchConfig(**search.model_dump() | {"seed": 5})
    assert (
        choose(graph, train, 8, other, Session(searches=tmp_path)).trials
        != first.about["search_trials"]
    )
    assert len(list(tmp_path.iterdir())) == 2


def test_search_without_validation_triples(train):
    bare = make_graph(valid=0)
    choice = choose(bare, train, 8, SearchConfig(), Session())
    assert (choice.margin, choice.lr, choice.trials) == (2.0, default_rate(train, 8), ())
    few = {"margins": (0.5, 1.0), "rates": (3.0,), "further": 0, "epochs": 1, "triples": 50}
    held_out = choose(bare, train, 8, SearchConfig(when="on", **few), Session())
    assert len(held_out.trials) == 3 and all(t["valid_mrr"] > 0 for t in held_out.trials)
    nothing = train.changed(fraction=0.0)
    with pytest.raises(MedappsError, match=r"no validation triples.*search.when=off"):
        choose(bare, nothing, 8, SearchConfig(when="on"), Session())


def test_a_trial_that_diverges_is_the_worst_one(graph, train, monkeypatch):
    step, rate = Optimiser.step, default_rate(train, 8)

    def overflow(self, table, ids, grad, lr, count):
        step(self, table, ids, grad, lr, count)
        if lr > 1.5 * rate:
            table[0, 0] = np.inf

    monkeypatch.setattr(Optimiser, "step", overflow)
    search = SearchConfig(margins=(1.0,), rates=(2.0,), further=0, epochs=1, triples=50)
    found = choose(graph, train, 8, search, Session())
    assert [t["valid_mrr"] > 0 for t in found.trials] == [True, False]
    assert found.lr == rate
