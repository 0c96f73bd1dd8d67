"""Lists of users in text files mean the users of the graph, be its ids integers or strings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from medapps.cli.main import app

QUICK = ["--set", "recommend.ncf.epochs=2", "--set", "label.epochs=3", "--seeds", "2"]


@dataclass(frozen=True)
class Trained:
    """A workspace, and how its graph writes the i-th user."""

    workspace: Path
    integers: bool

    def name(self, i: int) -> str:
        return str(1000 + i) if self.integers else f"user:{i:07d}"

    def run(self, *words: str | Path) -> tuple[int, dict]:
        shared = ["--workspace", self.workspace, "--json", "-q", "--no-track"]
        result = CliRunner().invoke(app, [str(word) for word in [*words, *shared]])
        return result.exit_code, json.loads(result.stdout)


@pytest.fixture(scope="module", params=["integers", "strings"])
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Path
) -> Trained:
    integers = request.param == "integers"
    root = tmp_path_factory.mktemp(request.param)
    (root / "data").mkdir()
    columns = {"skg": ["head", "tail"], "labels": ["user"], "interactions": ["user"]}
    for stem, users in columns.items():
        table = pl.read_parquet(tiny_dataset / f"{stem}.parquet")
        if integers:
            number = pl.col(users).str.strip_prefix("user:").cast(pl.Int64) + 1000
            table = table.with_columns(number)
        table.write_csv(root / "data" / f"{stem}.csv")
    made = Trained(root / "w", integers)
    options = ["--dims", "4,8", "--epochs", "2", "--set", "train.threads=1"]
    code, said = made.run("train", "--kg", root / "data", *options)
    assert code == 0, said
    return made


def lists(trained: Trained, folder: Path, names: list[str]) -> list[Path]:
    """The same ids as a table, as lines, and as Parquet in the type of the graph."""
    pl.DataFrame({"n": range(len(names)), "user": names}).write_csv(folder / "ids.csv")
    (folder / "ids.txt").write_text("".join(f"{name}\n" for name in names))
    ids = pl.Series("user", names)
    ids = ids.cast(pl.Int64) if trained.integers else ids
    ids.to_frame().write_parquet(folder / "ids.parquet")
    return [folder / f"ids{suffix}" for suffix in (".parquet", ".csv", ".txt")]


@pytest.mark.parametrize(
    ("command", "option"),
    [(["label", "--dim", "8"], "--predict"), (["recommend", "--dim", "4", "-k", "3"], "--users")],
)
def test_every_form_of_a_list_names_the_same_users(
    trained: Trained, tmp_path: Path, command: list[str], option: str
) -> None:
    names = [trained.name(i) for i in (17, 3, 250, 99, 4)] + [trained.name(999_999)]
    tables = []
    for path in lists(trained, tmp_path, names):
        out = tmp_path / f"{path.suffix[1:]}.parquet"
        code, said = trained.run(*command, *QUICK, option, path, "--out", out)
        assert code == 0 and said["unknown"] == 1, said
        tables.append(pl.read_parquet(out))
    assert tables[0].equals(tables[1]) and tables[0].equals(tables[2])
    assert tables[0]["user"].dtype == (pl.Int64 if trained.integers else pl.String)
    first = tables[0].filter(rank=1) if option == "--users" else tables[0]
    assert first.drop("user").n_unique() > 2  # not one answer for all


@pytest.mark.parametrize(
    ("command", "option"),
    [(["label", "--dim", "8"], "--predict"), (["recommend", "--dim", "4"], "--users")],
)
def test_a_list_of_strangers_is_refused(
    trained: Trained, tmp_path: Path, command: list[str], option: str
) -> None:
    ids, out = tmp_path / "ids.csv", tmp_path / "out.csv"
    ids.write_text("user\n77777777\n88888888\n")
    code, said = trained.run(*command, *QUICK, option, ids, "--out", out)
    assert code == 2 and "None of the 2 users" in said["error"] and not out.exists()
    ids.write_text("user\n")
    code, said = trained.run(*command, *QUICK, option, ids, "--out", out)
    assert code == 2 and "holds no ids" in said["error"]


def test_crop_and_similar_take_ids_as_they_are_written(trained: Trained, tmp_path: Path) -> None:
    names = [trained.name(i) for i in (17, 3, 250)]
    for path in lists(trained, tmp_path, names):
        code, said = trained.run("crop", "--dim", "4", "--ids", path)
        assert code == 0 and said["rows"] == 3, said
        code, near = trained.run("similar", names[0], "--crop", said["artifact"], "-k", "2")
        assert code == 0
        assert {str(row["neighbour"]) for row in near["neighbours"]} == set(names[1:])
    code, said = trained.run("similar", "77777777", "--dim", "4")
    assert code == 2 and "'77777777' is not in this crop" in said["error"]


def test_a_word_among_integers_is_named(trained: Trained, tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text(f"{trained.name(3)}\nAlice\n")
    code, said = trained.run("crop", "--dim", "4", "--ids", ids)
    assert code == 2 and "'Alice'" in said["error"]
    assert ("not integers" in said["error"]) == trained.integers
