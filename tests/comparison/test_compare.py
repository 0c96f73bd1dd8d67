"""The table: who is compared with whom, what is said, and what is written."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from medapps.comparison import compare
from medapps.comparison.gather import gather, saved_reports
from medapps.comparison.grid import grids, markdown
from medapps.comparison.write import copy_files, figures, load_comparison, save_comparison
from medapps.errors import MedappsError
from medapps.store import NEW, Workspace
from tests.comparison.reports import label_report, unit_report

CONTRACT = [
    "method", "tier", "dim", "task", "metric", "value", "low", "high", "seeds", "train_seconds",
    "bytes",
]  # fmt: skip


@pytest.fixture(scope="module")
def reports():
    """med clearly above pca, dt a hair apart from med, at two sizes."""
    rng = np.random.default_rng(0)
    base = rng.random((3, 400)) * 0.5
    out = []
    for dim in (10, 100):
        out += [
            unit_report("med", base + 0.2, dim),
            unit_report("pca", base + 0.1 + rng.normal(0, 0.05, base.shape), dim),
            unit_report("dt", base + 0.2 + rng.normal(0, 0.2, base.shape), dim),
            unit_report("random", base, dim, cost={}),
        ]
    return out


@pytest.fixture(scope="module")
def table(reports):
    return compare(reports)


def row(table, method, dim=10, metric="full.ndcg_at_10"):
    wanted = [r for r in table.rows if (r.method, r.dim, r.metric) == (method, dim, metric)]
    assert len(wanted) == 1
    return wanted[0]


def test_rows_have_the_promised_keys(table):
    assert list(table.plain()[0])[: len(CONTRACT)] == CONTRACT
    assert json.loads(json.dumps(table.plain())) == table.plain()


def test_value_is_the_mean_over_seeds_inside_its_interval(table, reports):
    for report in reports:
        found = row(table, report.method, report.dim)
        assert found.value == pytest.approx(report.metrics["full.ndcg_at_10"])
        assert found.low < found.value < found.high
        assert (found.seeds, found.units) == (3, 400)


def test_verdicts_speak_of_the_method_against_the_reference(table):
    assert row(table, "pca").verdict == "worse"
    assert row(table, "dt").verdict == "no difference shown"
    assert row(table, "med").verdict is None
    low, high = row(table, "pca").difference_low, row(table, "pca").difference_high
    assert low < row(table, "pca").difference < high < 0


def test_another_reference_turns_the_verdict(reports):
    assert row(compare(reports, reference="pca"), "med").verdict == "better"


def test_lower_is_better_where_it_is():
    worse = unit_report("dt", np.arange(100) % 7 + 3.0)
    better = unit_report("med", np.arange(100) % 7 + 1.0)
    renamed = [
        unit_report(r.method, [0], by_seed={"mean_rank": r.by_seed["full.ndcg_at_10"]},
                    units={"mean_rank": r.units["full.ndcg_at_10"]})
        for r in (worse, better)
    ]  # fmt: skip
    table = compare(renamed)
    assert row(table, "dt", metric="mean_rank").verdict == "worse"
    assert row(table, "med", metric="mean_rank").best


def test_only_equal_units_are_paired(reports):
    other = unit_report("pca", reports[1].units["full.ndcg_at_10"], unit_digest="another split")
    table = compare([reports[0], other])
    assert row(table, "pca").verdict is None and row(table, "pca").difference is None
    assert row(table, "pca").low is not None


def test_same_input_gives_the_same_table_whatever_else_is_in_it(table, reports):
    few = compare(reports[:2])
    assert compare(reports).rows == table.rows
    assert row(few, "med").low == row(table, "med").low


def test_metric_without_units_has_a_value_but_no_interval():
    table = compare([unit_report("med", [0.5], by_seed={"coverage": [0.2, 0.4]}, units={})])
    assert row(table, "med", metric="coverage").value == pytest.approx(0.3)
    assert row(table, "med", metric="coverage").low is None


def test_method_without_a_size_stands_beside_every_size(reports):
    table = compare([*reports, unit_report("none", np.full((1, 400), 0.1), dim=0)])
    assert {r.dim for r in table.rows} == {10, 100}
    assert row(table, "none", 10).verdict == row(table, "none", 100).verdict == "worse"
    assert row(table, "none", 10).tier == "phone"


def test_macro_f1_gets_interval_and_verdict_from_the_guesses():
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 3, 600)
    good = np.where(rng.random(600) < 0.8, truth, rng.integers(0, 3, 600))
    bad = np.where(rng.random(600) < 0.3, truth, rng.integers(0, 3, 600))
    table = compare([label_report("med", truth, good), label_report("pca", truth, bad)])
    found = row(table, "pca", metric="f1_macro")
    assert found.verdict == "worse" and found.target == "age"
    assert found.low < found.value < found.high


def test_trainings_of_one_recipe_are_merged_and_the_newest_recipe_counts():
    def report(recipe, training, value):
        details = {"recipe": recipe, "training": training}
        return unit_report("med", np.full(10, value), details=details)

    old = [report("5 epochs", 0, 0.1), report("5 epochs", 1, 0.1)]
    new = [report("30 epochs", 0, 0.2), report("30 epochs", 1, 0.4), report("30 epochs", 1, 0.6)]
    (group,) = gather(old + new)
    assert [r.metrics["full.ndcg_at_10"] for r in group.reports] == pytest.approx([0.2, 0.6])
    assert compare(old + new).rows[0].value == pytest.approx(0.4)
    assert compare(old + new).rows[0].seeds == 2


def test_nothing_to_compare_is_said():
    with pytest.raises(MedappsError, match="nothing to compare"):
        compare([])


def test_best_is_marked_once_per_size_and_metric(table):
    frame = table.frame().group_by("dim", "metric").agg(pl.col("best").sum())
    assert frame["best"].to_list() == [1, 1]


def test_controls_do_not_compete_for_best(reports):
    table = compare([*reports, unit_report("oracle", np.full((1, 400), 0.9), dim=0)])
    assert not row(table, "oracle", 10).best and row(table, "oracle", 10).verdict == "better"
    assert sum(r.best for r in table.rows) == 2
    assert compare([unit_report("none", [0.1, 0.2], 0)]).rows[0].best  # unless nobody else does


def test_kept_is_the_share_of_the_largest_size():
    table = compare([unit_report("med", [0.4, 0.6], 100), unit_report("med", [0.4, 0.5], 10)])
    assert row(table, "med", 100).kept == 1 and row(table, "med", 10).kept == pytest.approx(0.9)


def test_markdown_shows_every_method_and_marks_the_best(table):
    text = markdown(table)
    for line in grids(table)[0].lines:
        assert f"| {line.tier} | {line.dim} | {line.method} |" in text
    best = next(r for r in table.rows if r.best and r.dim == 10)
    assert f"**{best.value:.3f} [{best.low:.3f}, {best.high:.3f}]**" in text
    assert "ndcg@10" in text and "no difference shown" in text
    assert "one run" not in text
    assert "one run" in markdown(compare([unit_report("med", [0.4, 0.6])]))


def test_markdown_says_where_users_without_purchases_differ_although_the_others_do_not():
    warm = np.tile(np.linspace(0.1, 0.9, 200), (3, 1))

    def report(method, cold):
        values = {"full.ndcg_at_10": warm, "cold.ndcg_at_10": cold}
        means = {name: [float(row.mean()) for row in value] for name, value in values.items()}
        return unit_report(method, warm, units=values, by_seed=means)

    cold = np.tile(np.linspace(0, 0.5, 100), (3, 1))
    text = markdown(compare([report("med", cold + 0.3), report("dt", cold)]))
    medline, dtline = (next(x for x in text.split("\n") if f"| {m} |" in x) for m in ("med", "dt"))
    assert "↓" in dtline and "no difference shown" in dtline and "↓" not in medline
    assert "worse than med" in text and "cold ndcg@10" in text


def test_files_hold_the_table_and_three_plots(table, tmp_path):
    save_comparison(table, tmp_path / "saved", NEW, {})
    files = {path.name: path for path in copy_files(tmp_path / "saved", tmp_path / "out")}
    assert load_comparison(tmp_path / "saved") == table
    plots = {f"toy_recommend_{kind}.png" for kind in ("retention", "seconds", "bytes")}
    assert set(files) == {"comparison.md", "comparison.csv", "comparison.json"} | plots
    assert json.loads(files["comparison.json"].read_text())["rows"] == table.plain()
    frame = pl.read_csv(files["comparison.csv"])
    assert frame["value"].to_list() == pytest.approx([r.value for r in table.rows])
    for plot in plots:
        assert files[plot].read_bytes().startswith(b"\x89PNG") and files[plot].stat().st_size > 5000


@pytest.mark.parametrize("seconds", [1e-3, 0.07, 0.1203, 1.0, 35.02, 5e4])
def test_one_training_for_all_sizes_can_be_drawn_beside_a_control(seconds, tmp_path):
    units = np.random.default_rng(0).random(50)
    cost = {"train_seconds": seconds, "bytes": 1000.0}
    reports = [unit_report("med", units, dim, cost=cost) for dim in (4, 8)]
    table = compare([*reports, unit_report("oracle", units + 1, 0, cost={})])
    drawn = dict(figures(table))
    assert len(drawn) == 3
    for name, figure in drawn.items():
        figure.savefig(tmp_path / name)
        low, high = figure.axes[0].get_xlim()
        assert low < high


def test_saved_reports_come_back_oldest_first(reports, tmp_path):
    workspace = Workspace(tmp_path)
    for name, report in zip("zax", reports, strict=False):
        report.save(workspace.folder("report", name))
    found = [one.report for one in saved_reports(workspace)]
    assert [report.method for report in found] == ["med", "pca", "dt"]
    assert compare(found).rows == compare(reports[:3]).rows
    with pytest.raises(MedappsError, match="toy/recommend"):
        saved_reports(workspace, task="label")
    with pytest.raises(MedappsError, match="no finished study 'none'"):
        saved_reports(workspace, study="none")


def test_notes_say_where_budgets_graphs_or_splits_differ(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.random((1, 50))

    def one(method, epochs, graph="g", **more):
        budget = {"epochs": epochs, "triples_seen": 100 * epochs, "graph": graph}
        return unit_report(method, values, details=budget, **more)

    fair = [one("med", 2), one("dt", 2), unit_report("none", values, 0)]
    assert compare(fair).notes == ()
    table = compare(
        [one("med", 2), one("dt", 30), one("pca", 2, "h"), one("bkd", 2, unit_digest="o")]
    )
    said = " | ".join(table.notes)
    assert "dt trained 30 epochs (3,000 triples seen), med 2 epochs (200 triples seen)" in said
    assert "pca was trained on another graph than med" in said
    assert "bkd was measured on another split than med" in said
    assert len(table.notes) == 3 and all(note in markdown(table) for note in table.notes)
    save_comparison(table, tmp_path / "c", NEW, {})
    assert load_comparison(tmp_path / "c").notes == table.notes
