"""Labelling on planted vectors, its controls, its model, and models in company or alone."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from medapps.crop.service import NamedVectors, Scaling
from medapps.errors import MedappsError
from medapps.graph.split import TRAIN, VALID
from medapps.label.config import LabelConfig
from medapps.label.model import LabelModel
from medapps.label.network import Examples, MlpSetting, train_mlps
from medapps.label.run import LabelResult, label_users, needed_bytes, train_labeller
from medapps.report import Report

QUICK = LabelConfig(hidden=16, epochs=40, dropout=(0.1,), weight_decay=(0.01, 1.0), batch=32)


@pytest.fixture(scope="module")
def result(planted: NamedVectors, labels: pl.DataFrame) -> LabelResult:
    return train_labeller(planted, labels, QUICK, seeds=(0, 1), data="planted")


def test_planted_labels_are_found_and_controls_are_not(result: LabelResult) -> None:
    beside = result.report.details["beside"]
    assert result.report.metrics["accuracy"] > 0.8
    assert beside["linear_probe"]["accuracy"] > 0.7
    for control in ("majority", "random", "shuffled"):
        assert beside[control]["accuracy"] < 0.5
    assert result.report.details["majority"] == beside["majority"]["accuracy"]


def test_report_holds_what_a_comparison_needs(result: LabelResult, tmp_path: Path) -> None:
    report = result.report
    tested = result.split.filter(pl.col("part") == "test")
    assert report.units["accuracy"].shape == (2, len(tested))
    assert report.units["accuracy"].mean() == pytest.approx(report.metrics["accuracy"])
    right = report.units["truth"] == report.units["guess"]
    assert np.array_equal(right, report.units["accuracy"] == 1)
    low, high = report.details["interval"]["accuracy"]
    assert low <= report.metrics["accuracy"] <= high
    assert report.tables["classes"]["support"].sum() == len(tested)
    assert report.tables["confusion"]["users"].sum() == pytest.approx(len(tested))
    report.save(tmp_path / "report")
    assert Report.load(tmp_path / "report").metrics == report.metrics


def test_every_method_sees_the_same_users(
    result: LabelResult, planted: NamedVectors, labels: pl.DataFrame
) -> None:
    other = NamedVectors(planted.names, planted.values[:, :3], "other")
    shuffled = labels.sample(fraction=1, shuffle=True, seed=1)
    quick = QUICK.model_copy(update={"epochs": 1, "controls": False})
    again = train_labeller(other, shuffled, quick, seeds=(5,))
    assert again.report.unit_digest == result.report.unit_digest
    assert again.split.equals(result.split)


def test_saved_model_labels_new_users(
    result: LabelResult, planted: NamedVectors, tmp_path: Path
) -> None:
    result.model.save(tmp_path / "model")
    model = LabelModel.load(tmp_path / "model")
    users = pl.Series("user", ["user:007", "nobody", "user:008"])
    table = model.predict(planted, users)
    assert table.equals(result.model.predict(planted, users))
    assert table["in_graph"].to_list() == [True, False, True]
    shares = table.select(pl.sum_horizontal(pl.col("^p_.*$")))
    assert shares.to_series().to_list() == pytest.approx([1, 1, 1])
    assert (
        table["probability"] == table.select(pl.max_horizontal(pl.col("^p_.*$"))).to_series()
    ).all()
    with pytest.raises(MedappsError, match=r"trained on 8 numbers.*have 3.*--dim 8"):
        model.predict(NamedVectors(planted.names, planted.values[:, :3], "small"), users)


@pytest.mark.parametrize("column", ["probability", "in_graph", "p_north", "p_other", "place"])
def test_a_label_keeps_its_values_whatever_its_column_is_called(
    result: LabelResult, planted: NamedVectors, names: pl.Series, column: str
) -> None:
    table = replace(result.model, column=column).predict(planted, names)
    usual = result.model.predict(planted, names)
    taken = column in ("probability", "in_graph", "p_north")
    assert table.columns[1] == (f"label_{column}" if taken else column)
    assert table.rename({table.columns[1]: "place"}).equals(usual)
    assert set(usual["place"]) == {"north", "east", "south", "west"}


def test_a_user_outside_the_graph_is_counted_and_flagged(result: LabelResult) -> None:
    assert result.report.details["missing_users"] == 1


def test_a_model_is_the_same_in_company_and_alone() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 5)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
    settings = (MlpSetting(0.2, 0.0), MlpSetting(0.5, 1.0))
    config = LabelConfig(hidden=8, learning_rate=0.01, epochs=4, patience=9, batch=16)
    data = Examples(x, y, np.repeat([TRAIN, VALID], [40, 20]), 3)
    both = train_mlps(data, (3, 4), settings, config)
    for seed in range(2):
        for place, setting in enumerate(settings):
            alone = train_mlps(data, ((3, 4)[seed],), (setting,), config)
            assert np.allclose(alone.w1[0, 0], both.w1[seed, place], atol=1e-5)
            assert alone.epoch[0, 0] == both.epoch[seed, place]
    assert not np.allclose(both.w1[0, 0], both.w1[1, 0])


def test_one_step_equals_a_plain_torch_network() -> None:
    import torch
    from torch import nn

    rng = np.random.default_rng(1)
    x = rng.standard_normal((30, 5)).astype(np.float32)
    y = rng.integers(0, 3, 30)
    rate, decay = 0.05, 0.4
    data = Examples(np.tile(x, (2, 1)), np.tile(y, 2), np.repeat([TRAIN, VALID], 30), 3)
    config = LabelConfig(hidden=4, learning_rate=rate, epochs=1, patience=1, batch=30)
    fit = train_mlps(data, (7,), (MlpSetting(0.0, decay),), config)
    generator = torch.Generator().manual_seed(7)
    first = torch.empty(5, 4).uniform_(-(5**-0.5), 5**-0.5, generator=generator)
    second = torch.empty(4, 3).uniform_(-(4**-0.5), 4**-0.5, generator=generator)
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    net[0].weight.data, net[2].weight.data = first.T.clone(), second.T.clone()
    net[0].bias.data.zero_(), net[2].bias.data.zero_()
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    nn.functional.cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    optimizer.step()
    expected = net[0].weight.detach().numpy().T * (1 - rate * decay)
    assert np.allclose(fit.w1[0, 0], expected, atol=1e-5)
    assert np.allclose(fit.b2[0, 0], net[2].bias.detach().numpy(), atol=1e-5)


def test_scaling_is_that_of_the_training_users() -> None:
    values = np.array([[1, 10], [3, 30], [100, 1000]], np.float32)
    out = Scaling.fit(values[:2]).apply(values, np.array([True, True, False]))
    assert out.tolist() == [[-1, -1, 0], [1, 1, 0], [0, 0, 1]]
    constant = Scaling.fit(np.ones((4, 2), np.float32)).apply(np.ones((1, 2)), np.array([True]))
    assert constant.tolist() == [[0, 0, 0]]


def _labels(kinds: list[str | None]) -> pl.DataFrame:
    return pl.DataFrame({"user": [f"user:{i:03d}" for i in range(len(kinds))], "kind": kinds})


@pytest.mark.parametrize(
    ("frame", "config", "message"),
    [
        (_labels(["a"] * 9 + ["b"] * 2), {}, "Class 'b' of kind has 2 users.*label.rare=drop"),
        (_labels(["a"] * 9), {}, "one class only.*--label"),
        (_labels(["a"] * 9 + ["b"] * 2), {"rare": "drop"}, "one class only"),
        (_labels(["a", "b"]), {"rare": "drop"}, "No class of kind has 3 users"),
        (_labels([None, None]), {}, "empty for every user"),
        (_labels([]), {}, "columns but no rows"),
        (_labels(["a"] * 9).rename({"user": "id"}), {}, "no column 'user'; it has 'id', 'kind'"),
        (_labels(["a"] * 9), {"column": "sort"}, "'sort' is not there.*one of: kind"),
        (
            _labels(["a"] * 9).with_columns(share=0.5),
            {"column": "share"},
            "'share' holds fractional numbers",
        ),
        (
            pl.concat([_labels(["a", "b"]), _labels(["b", "b"])]),
            {},
            "2 users .* more than one row, such as 'user:000'",
        ),
        (
            _labels(["a", "b"] * 5).with_columns(user=pl.lit("alien:") + pl.col("user")),
            {},
            "None of the 10 users is in the graph.*medapps data check",
        ),
    ],
)
def test_wrong_labels_are_explained(
    planted: NamedVectors, frame: pl.DataFrame, config: dict, message: str
) -> None:
    with pytest.raises(MedappsError, match=message):
        label_users(planted, frame, LabelConfig(**config))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([[1], [2]], "List(Int64)"),
        ([b"a", b"b"], "Binary"),
        ([timedelta(1), timedelta(2)], "Duration"),
        (pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int64, 2)), "Array(Int64"),
        ([{"a": 1}, {"a": 2}], "Struct"),
    ],
)
def test_columns_that_are_no_classes_are_named(
    planted: NamedVectors, values: object, kind: str
) -> None:
    frame = _labels(["a", "b"]).select("user", kind=pl.Series(values))
    frame = pl.concat([frame.with_columns(user=pl.lit(f"user:{i:03d}")) for i in range(9)])
    with pytest.raises(MedappsError, match=re.escape(kind)) as caught:
        label_users(planted, frame)
    assert "'kind'" in str(caught.value)
    beside = frame.with_columns(other=pl.lit("x"))
    with pytest.raises(MedappsError, match=re.escape(f"'kind' holds values of type {kind}")):
        label_users(planted, beside, LabelConfig(column="kind"))


def test_labels_of_which_the_graph_knows_one_user_are_refused(planted: NamedVectors) -> None:
    names = [f"alien:{i}" for i in range(20)]
    for known in range(20):
        users = [*names[:known], "user:001", *names[known + 1 :]]
        frame = pl.DataFrame({"user": users, "kind": ["a", "b"] * 10})
        with pytest.raises(MedappsError, match=r"nothing to learn: of 20.*the graph knows 1"):
            label_users(planted, frame)


def test_broken_vectors_are_explained(planted: NamedVectors, labels: pl.DataFrame) -> None:
    values = planted.values.copy()
    values[4, 2] = np.nan
    with pytest.raises(MedappsError, match=r"'user:004'.*not finite"):
        label_users(NamedVectors(planted.names, values, "broken"), labels)


def test_too_little_memory_is_said_before_the_start(
    planted: NamedVectors, labels: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    whole = NamedVectors.vectors

    def vectors(self: NamedVectors, names: pl.Series) -> tuple[np.ndarray, np.ndarray]:
        asked.append(len(names))
        return whole(self, names)

    monkeypatch.setattr(NamedVectors, "vectors", vectors)
    monkeypatch.setattr("medapps.memory.available_bytes", lambda: 10_000)
    with pytest.raises(MedappsError, match=r"Labelling needs .* GiB .*smaller --dim \(now 8\)"):
        train_labeller(planted, labels, QUICK, seeds=(0, 1))
    assert asked == [1]  # how wide they are, and no more


def test_the_estimate_grows_with_users_and_numbers() -> None:
    small = needed_bytes(1000, 10, 4, 5, QUICK)
    wide, many = needed_bytes(1000, 100, 4, 5, QUICK), needed_bytes(10_000, 10, 4, 5, QUICK)
    assert wide["vectors"] > 9 * small["vectors"] and many["vectors"] == 10 * small["vectors"]
    assert needed_bytes(10**9, 10, 4, 5, QUICK)["hidden layers"] < 2**30  # they go in blocks
