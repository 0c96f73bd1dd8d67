"""The scripts of the studies: right numbers on hand cases, and one run of each on a tiny graph."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from medapps.config import resolve
from medapps.crop.embedding import Embedding
from medapps.evaluate.link_prediction import ranks_of, retention
from medapps.graph.read import read_graph
from medapps.report import Report
from medapps.settings import Settings
from medapps.stages import Runner
from medapps.store import Workspace
from medapps.study.run import run_study

PIPELINES = Path(__file__).parents[2] / "pipelines"
CONFIG = """
study: {name: small, data: [linked], methods: [med, dt, ext-v], tasks: [rank], seeds: [0]}
train: {dims: [4, 8], epochs: 1, threads: 1}
baseline: {search: {when: "off"}}
"""


@pytest.fixture
def script(monkeypatch, capsys):
    """Import a script, or run it and give what it prints."""
    monkeypatch.syspath_prepend(str(PIPELINES))

    def load(name: str, *words: object):
        module = importlib.import_module(name)
        if not words:
            return module
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        module.main()
        return capsys.readouterr().out

    return load


@pytest.fixture
def linked(tiny_dataset, tmp_path) -> Path:
    """A folder with train and test triples, and a config beside it."""
    triples = pl.read_parquet(tiny_dataset / "skg.parquet").head(2000)
    folder = tmp_path / "linked"
    folder.mkdir()
    triples[::20].write_parquet(folder / "test.parquet")
    triples.filter(pl.int_range(pl.len()) % 20 != 0).write_parquet(folder / "train.parquet")
    (tmp_path / "small.yaml").write_text(CONFIG)
    return folder


def cells(out: str) -> list[list[str]]:
    """The cells of every line of a Markdown table, the two title lines left out."""
    lines = [line for line in out.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def report(ranks: list[list[float]], dim: int) -> Report:
    """A report of (2, triples) ranks as link prediction writes it."""
    reciprocal = (1 / np.array(ranks)).reshape(1, -1).astype(np.float32)
    return Report(task="rank", method="m", dim=dim, units={"mrr": reciprocal}, unit_digest="same")


def test_ranks_come_back_from_a_report():
    ranks = np.arange(1, 300_000) / 2 + 0.5
    assert (ranks_of(report([ranks, ranks[::-1]], 4)) == [ranks, ranks[::-1]]).all()


def test_retention_of_a_chain_by_hand(script):
    """Five triples, heads and tails alike: never, last only, lost again, kept twice."""
    hits = np.array([[0, 0, 1, 1, 0], [0, 0, 0, 1, 1], [0, 1, 1, 1, 1]], bool)  # (dims, triples)
    chain = [report(np.where([hit, hit], 10.0, 10.5), dim) for dim, hit in enumerate(hits)]
    found = script("retention").retained(chain)
    assert found == pytest.approx(
        {
            "arr": 3 / 4,
            "arr_triple": 3 / 4,
            "arr_all": 3 / 5,
            "arr_last_only": 1 / 4,
            "arr_others": 2 / 3,
        }
    )


def test_retention_of_a_chain_is_that_of_a_naive_loop(script):
    ranks = np.random.default_rng(0).integers(1, 40, (4, 2, 50)).astype(float)
    chain = [report(part, dim) for dim, part in enumerate(ranks)]
    kept = some = 0
    for query in ranks.reshape(4, -1).T:
        first = next((i for i in range(4) if query[i] <= 10), None)
        some += first is not None
        kept += first is not None and all(rank <= 10 for rank in query[first:])
    assert script("retention").retained(chain)["arr"] == pytest.approx(kept / some)


def test_retention_uses_the_trainings_of_a_study(script, linked, tmp_path):
    config = tmp_path / "small.yaml"
    runner = Runner(Workspace(tmp_path / "w"), tracked=False)
    settings = resolve(Settings, file=config)
    run_study(runner, settings, data=tmp_path)
    before = made(tmp_path / "w")
    place = ("--config", config, "--workspace", tmp_path / "w", "--no-track")
    picture = tmp_path / "retention.png"
    methods = ("--methods", "med", "dt", "ext-v", "--plot", picture)
    rows = cells(script("retention", linked, *place, *methods))
    assert made(tmp_path / "w") == before and picture.stat().st_size > 0
    assert [row[:2] for row in rows] == [["med", "4, 8"], ["dt", "4, 8"], ["ext-v", "4, 8 (dt)"]]
    folders = [path.parent for path in (tmp_path / "w" / "reports").glob("*/manifest.json")]
    reports = {(r.method, r.dim): r for r in map(Report.load, folders)}
    truth = retention(np.stack([ranks_of(reports["med", dim]) for dim in (4, 8)]))
    assert truth == pytest.approx(reports["med", 8].details["retention"])
    assert float(rows[0][2]) == pytest.approx(truth["arr"], abs=6e-5)
    truth = retention(np.stack([ranks_of(reports[m]) for m in (("ext-v", 4), ("dt", 8))]))
    assert float(rows[2][2]) == pytest.approx(truth["arr"], abs=6e-5)


def made(workspace: Path) -> set[Path]:
    """Every finished folder of a workspace but the graphs."""
    return {path.parent for path in workspace.glob("[!g]*/*/manifest.json")}


def test_settings_are_those_of_the_file_that_names_the_data(script, tmp_path):
    settings_at = script("script").settings_at
    one = resolve(Settings, sets=["train.epochs=3", "study.data=[wn18rr]"])
    item = {"name": "fb15k-237", "set": {"train.lr": 0.5}}
    other = resolve(Settings, sets=["train.epochs=4"], flags={"study.data": [item]})
    found = settings_at([one, other], tmp_path / "fb15k-237").train
    assert (found.epochs, found.optimiser.lr) == (4, 0.5)
    assert settings_at([one, other], tmp_path / "elsewhere").train.epochs == 3


def test_efficiency_divides_by_the_numbers_in_the_crop(script, linked, tmp_path):
    place = ("--workspace", tmp_path / "w", "--no-track", "--plot", tmp_path / "effi.png")
    small = ("--config", tmp_path / "small.yaml", "--scorer", "rotate", "--seeds", 0, 1)
    rows = cells(script("efficiency", linked, *place, *small))
    train = pl.read_parquet(linked / "train.parquet")
    test = pl.read_parquet(linked / "test.parquet")
    both = pl.concat([train, test])
    entities = pl.concat([both["head"], both["tail"]]).n_unique()
    for dim, row in zip((4, 8), rows, strict=True):
        parameters = dim * (2 * entities + both["relation"].n_unique())
        assert row[:3] == ["MED, rotate", str(dim), f"{parameters / 1e6:.3f}"]
        mrr = float(row[3].split()[0])
        assert float(row[6]) == pytest.approx(mrr * 1e6 / parameters, rel=0.02)
    assert (tmp_path / "effi.png").stat().st_size > 0
    for path in (tmp_path / "w" / "embeddings").glob("*/manifest.json"):
        crop = Embedding.load(path.parent).crop(4)
        counted = crop.entities.size + crop.relations.size
        assert rows[0][2] == f"{counted / 1e6:.3f}"


def test_the_papers_efficiency_is_mrr_over_millions_and_substitutes_are_named(script):
    efficiency = script("efficiency")
    for numbers in efficiency.PAPER.values():
        assert len(numbers) == len(efficiency.MODELS)
        for _, millions, mrr, hits, printed in numbers:
            assert mrr / millions == pytest.approx(printed, abs=0.00051) and mrr < hits
    for folder, (ours, theirs) in efficiency.TITLES.items():
        assert theirs in efficiency.PAPER
        assert (ours == theirs) == (folder in ("fb15k-237", "wn18rr"))


def test_times_on_a_line_are_summed_over_all_sizes(script, tmp_path):
    """Processor: dt takes 2 + dim / 10, bkd 3 + dim / 5, MED 41 seconds, in the second round all
    thrice that; the clock on the wall shows twice as much, but for MED.
    """
    sixty = script("sixty_four")
    calls: list[tuple[str, int]] = []

    def seconds(method: str, dim: int) -> tuple[float, float]:
        calls.append((method, dim))
        slow = 3 if calls.count((method, dim)) == 2 else 1
        cpu = slow * {"med": 41, "dt": 2 + dim / 10, "bkd": 3 + dim / 5}[method]
        return cpu if method == "med" else 2 * cpu, cpu

    dims = tuple(range(10, 641, 10))
    jobs = [("med", 0), *(("dt", dim) for dim in (10, 320, 640)), ("bkd", 10), ("bkd", 630)]
    clocks = sixty.measure(jobs, 2, tmp_path / "notes" / "a.jsonl", seconds)
    assert calls == jobs * 2  # rounds alternate between everything
    alone = sum(2 + dim / 10 for dim in dims)
    distilled = sum(3 + dim / 5 for dim in dims[:-1]) + 2 + 64
    assert sixty.totals("dt", clocks[1], dims) == pytest.approx([alone, 3 * alone])
    assert sixty.totals("bkd", clocks[0], dims) == pytest.approx([2 * distilled, 6 * distilled])
    row = sixty.row("bkd", clocks, dims, 10, {"bkd": 11.6})
    assert row[:2] == ["bkd", "extrapolated from 2 sizes"] and row[-2:] == ["11.6×", "0%"]
    assert row[5:7] == [f"**{2 * distilled / 41:.2f}×**", f"**{distilled / 41:.2f}×**"]
    assert row[3:5] == [
        f"{2 * distilled:.1f}",
        f"{2 * distilled * 10 / 3600:.2f}",
    ]  # median of 1, 3
    again = sixty.measure(jobs, 3, tmp_path / "notes" / "a.jsonl", seconds)
    assert len(calls) == 3 * len(jobs) and len(again[0]["med", 0]) == 3


def test_the_first_update_of_a_stage_is_not_counted(script):
    ticks = script("sixty_four").Ticks()
    ticks.marks = [(float(t), 10.0 * t) for t in (100, 101, 102, 200, 205, 210)]
    assert ticks.of(0, 3) == (3, 30) and ticks.of(3, 3) == (15, 150)


def test_students_are_measured_below_their_teacher(script):
    sizes = script("sixty_four").measured_sizes
    dims, asked = range(10, 641, 10), [10, 320, 640]
    assert sizes("dt", asked, dims) == asked and sizes("bkd", asked, dims) == [10, 320, 630]


def test_sixty_four_measures_and_goes_on(script, linked, tmp_path):
    place = ("--config", tmp_path / "small.yaml", "--workspace", tmp_path / "w", "--no-track")
    small = ("--dims", 4, 8, 12, "--sizes", 4, 12, "--steps", 3, "--epochs", 5)
    small += ("--set", "train.batch=128", "--set", "train.chunk=128")
    out = script("sixty_four", linked, *place, *small, "--rounds", 1)
    assert "all 3 sizes" in out and "hours of 5 epochs" in out and "384 triples" in out
    rows = cells(out)
    assert [row[0] for row in rows] == ["med", "dt", "bkd", "dualde"]
    assert all("extrapolated from 2 sizes" in row for row in rows[1:])
    notes = next((tmp_path / "w" / "sixty_four").iterdir())
    first = notes.read_text()
    picture = tmp_path / "times.png"
    script("sixty_four", linked, *place, *small, "--rounds", 2, "--plot", picture)
    assert notes.read_text().startswith(first)
    assert len(notes.read_text().splitlines()) == 2 * len(first.splitlines()) == 14
    assert picture.stat().st_size > 0


def test_purity_of_clusters_and_of_noise(script):
    purity = script("entity_map").purity
    draws = np.random.default_rng(0)
    vectors = draws.standard_normal((60, 4)).astype(np.float32)
    classes = np.repeat(["a", "b"], 30)
    apart = vectors + 100 * (classes == "b")[:, None]
    assert purity(apart, classes) == 1
    distance = ((vectors[:, None] - vectors[None]) ** 2).sum(-1) + 1e9 * np.eye(60)
    near = np.argsort(distance, 1)[:, :10]
    naive = np.mean([[classes[i] == classes[j] for j in near[i]] for i in range(60)])
    assert purity(vectors, classes) == pytest.approx(naive) and 0.3 < naive < 0.7


def test_domain_is_the_most_frequent_one_of_those_asked_for(script, tmp_path):
    """p heads film twice and music once; q music and sports once each; r only film."""
    rows = [
        ("p", "/film/actor/film", "x"), ("p", "/film/actor/role", "x"),
        ("p", "/music/artist/label./a/b", "x"), ("q", "/sports/team/a", "x"),
        ("q", "/music/genre/a", "x"), ("r", "/film/film/a", "x"), ("s", "/sports/team/a", "q"),
    ]  # fmt: skip
    frame = pl.DataFrame(rows, schema=["head", "relation", "tail"], orient="row")
    frame.write_parquet(tmp_path / "train.parquet")
    graph = read_graph(tmp_path)

    def found(*names: str) -> dict[str, str]:
        kinds = script("entity_map").domains(graph, names)
        return dict(zip(graph.entities.names(kinds["id"].to_numpy()), kinds["class"], strict=True))

    assert found("music", "sports") == {"p": "music", "q": "music", "s": "sports"}
    assert found("film", "music") == {"p": "film", "q": "music", "r": "film"}


def test_every_class_gives_so_many_entities_and_always_the_same(script):
    drawn = script("entity_map").drawn
    kinds = pl.DataFrame({"id": np.arange(50), "class": ["a"] * 40 + ["b"] * 10})
    sample = drawn(kinds, 15)
    assert sample.classes.tolist() == ["a"] * 15 + ["b"] * 10
    assert set(sample.ids[:15]) < set(range(40)) and set(sample.ids[15:]) == set(range(40, 50))
    assert (drawn(kinds.sample(fraction=1, shuffle=True, seed=1), 15).ids == sample.ids).all()


def test_entity_map_draws_every_method_and_size(script, tiny_dataset, tmp_path):
    labels = pl.read_parquet(tiny_dataset / "labels.parquet")
    (tmp_path / "small.yaml").write_text(CONFIG)
    place = ("--config", tmp_path / "small.yaml", "--workspace", tmp_path / "w", "--no-track")
    picture = tmp_path / "map.png"
    small = ("--labels", labels.columns[1], "--dims", 4, 8, "--methods", "med", "ext-v")
    out = script("entity_map", tiny_dataset, *place, *small, "--each", 20, "--plot", picture)
    rows = cells(out)
    assert [" ".join(row[:2]) for row in rows] == ["med 4", "med 8", "ext-v 4", "ext-v 8 (dt)"]
    assert picture.stat().st_size > 10_000
    crop = Embedding.load(next((tmp_path / "w" / "embeddings").glob("*/manifest.json")).parent)
    users = labels.drop_nulls().filter(pl.col("user").is_in(crop.entity_ids.names().implode()))
    chosen = script("entity_map").drawn(
        pl.DataFrame(
            {
                "id": crop.entity_ids.ids(users["user"]),
                "class": users[labels.columns[1]].cast(pl.String),
            }
        ),
        20,
    )
    truth = script("entity_map").purity(np.asarray(crop.entities)[chosen.ids, :4], chosen.classes)
    assert float(rows[0][3]) == pytest.approx(truth, abs=6e-4)


def test_values_to_try_may_be_lists(script):
    found = script("recipe_search")._combinations(["margin=[3,6],[1.5,8]", "lr=0.1"])
    assert found == [{"margin": [3, 6], "lr": 0.1}, {"margin": [1.5, 8], "lr": 0.1}]


def test_curves_are_those_that_the_training_logged(script, linked, tmp_path):
    (linked / "test.parquet").rename(linked / "valid.parquet")
    text = CONFIG.replace("epochs: 1", "epochs: 4, every: 2")
    (tmp_path / "small.yaml").write_text(text)
    place = ("--config", tmp_path / "small.yaml", "--workspace", tmp_path / "w")
    out = script("curves", linked, *place, "--plot", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000
    rows = cells(out)
    assert [row[0] for row in rows] == ["2", "4"]
    (manifest,) = (tmp_path / "w" / "embeddings").glob("*/manifest.json")
    metrics = Embedding.load(manifest.parent).metrics
    assert rows[-1][1:] == [f"{metrics[f'valid_mrr_{dim}']:.4f}" for dim in (4, 8)]


def test_what_a_user_can_mend_is_said_in_a_line(tmp_path):
    words = [sys.executable, PIPELINES / "variants.py", tmp_path / "nowhere", "ablation"]
    done = subprocess.run([*words, "--workspace", tmp_path], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("variants: "), done.stderr
    assert "nowhere" in done.stderr and "Traceback" not in done.stderr
