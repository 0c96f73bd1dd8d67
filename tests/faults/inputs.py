"""Bad inputs and flipped bytes, each in a forked process: nothing may end with code 1 or crash."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tests.faults.harness import DATA, GOOD_CODES, SMALL, TASK, TRAIN, WORK, Shop, artefacts

PATIENCE = 6.0
MEMORY = 12 * 2**30
WORDS = ["", " ", "user:0000001", "[/red]", "$\\foo$", "a b", "../x", "%20", "#", "?", "[1]", "é\n"]
ODD_PATHS = ["a[1]", "a?b", "a%20b", "a#b", "a b", "-x", "é", "x" * 300, "dir", "fifo", "no/where"]
ODD_PATHS += ["ws", "ids.txt", "../shop", "/proc/x", ""]
NUMBERS = ["-1", "0", "1", "3", "nan", "inf", "-inf", "1e30", "1e-30", "1e400", str(2**31)]
NUMBERS += [str(2**63), str(-(2**63) - 1), "0.5", "9" * 40]
VALUES = [*NUMBERS, "", "null", "true", "foo", "[]", "[0]", "[1,1]", "[8,4]", "{}", "{a: 1}"]
VALUES += ["[[1]]", "[null]", "'['", "&a [*a]", "2026-02-31", "!!python/name:os.system", "x" * 5000]


def flat(model: type[BaseModel], before: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting by its dotted name."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from flat(inner, f"{before}{name}.")
        else:
            yield f"{before}{name}", field


def extremes(field: FieldInfo) -> list[str]:
    """Values at and just beyond the bounds of a setting, and every one of its choices."""
    found = [str(one) for one in get_args(field.annotation) if isinstance(one, (str, int))]
    for rule in field.metadata:
        for name in ("ge", "gt", "le", "lt"):
            if (bound := getattr(rule, name, None)) is not None:
                found += [str(bound), str(bound + 1), str(bound - 1)]
    return found


def setting(chance: random.Random) -> list[str]:
    """A `--set` from the settings' own schema with a value that is extreme."""
    from medapps.settings import Settings

    key, field = chance.choice(list(flat(Settings)))
    if chance.random() < 0.05:
        key += chance.choice(["x", ".a", "", " "])
    value = chance.choice(VALUES if chance.random() < 0.5 else extremes(field) or VALUES)
    section = key.partition(".")[0]
    user = section if section in ("crop", "label", "recommend", "baseline") else "train"
    return [*base_command(user), "--set", f"{key}={value}"]


def base_command(name: str) -> list[str]:
    """The shortest command of that name that works."""
    if name == "train":
        return [*TRAIN, "--epochs", "1", "--force", *DATA, *SMALL]
    own = {"baseline": ["pca"], "similar": ["user:0000001"], "label": TASK, "recommend": TASK}
    return [name, *own.get(name, []), *WORK, *SMALL, *(["--force"] if name == "baseline" else [])]


def command_line(chance: random.Random) -> list[str]:
    """A command with one or two options of its own that have odd values."""
    import typer

    from medapps.cli.main import app

    group: Any = typer.main.get_command(app)
    name = chance.choice(["train", "crop", "rank", "label", "recommend", "similar", "baseline"])
    options = [
        one
        for one in group.commands[name].params
        if one.param_type_name == "option" and one.name not in ("debug", "dump_config", "help")
    ]
    words = base_command(name)
    for option in chance.sample(options, chance.choice([1, 1, 2])):
        words.append(max(option.opts, key=len))
        if not option.is_flag:
            kind = option.type_descriptor.annotation
            pool = (
                ODD_PATHS if kind is Path else NUMBERS if kind in (int, float) else WORDS + VALUES
            )
            words.append(chance.choice(pool))
    return [word for word in words if "\0" not in word]


def table(chance: random.Random, place: Path) -> list[str]:
    """A command that reads a table of odd columns."""
    import polars as pl

    rows = chance.choice([0, 1, 2, 30])
    users = [f"user:{n:07d}" for n in range(rows)]

    def column() -> pl.Series:
        made: list[Callable[[], list[Any]]] = [
            lambda: users,
            lambda: list(range(rows)),
            lambda: [2**63 - 1 - n for n in range(rows)],
            lambda: [None] * rows,
            lambda: [chance.choice([None, "a", "b", "", "[/red]"]) for _ in range(rows)],
            lambda: [chance.choice([float("nan"), float("inf"), -0.0, 1e300]) for _ in range(rows)],
            lambda: [chance.random() < 0.5 for _ in range(rows)],
            lambda: [[1, 2]] * rows,
            lambda: [b"\xff"] * rows,
            lambda: [{"a": 1}] * rows,
            lambda: ["x" * 10_000] * rows,
        ]
        values = pl.Series(chance.choice(made)())
        if chance.random() < 0.2:
            kinds = [pl.Date, pl.Duration("us"), pl.Categorical, pl.Int8, pl.UInt64, pl.Decimal]
            values = values.cast(chance.choice(kinds), strict=False)  # type: ignore[arg-type]
        return values

    names = {
        "graph": ["head", "relation", "tail"],
        "labels": ["user", "segment"],
        "interactions": ["user", "item", "rating", "time"],
        "ids": ["id"],
    }
    kind = chance.choice(list(names))
    odd = ["user ", "User", "", "p_a", "probability", "in_graph", "[/red]"]
    columns = {}
    for number, name in enumerate(names[kind]):
        if chance.random() < 0.1:
            name = chance.choice(odd)
        known = pl.Series(users if number == 0 else ["a", "b"] * (rows // 2) + ["a"] * (rows % 2))
        try:
            columns[name] = known if chance.random() < 0.5 else column()
        except (pl.exceptions.PolarsError, TypeError):  # no such cast
            columns[name] = known
    frame = pl.DataFrame({name: values.alias(name) for name, values in columns.items()})
    file = place / f"table.{chance.choice(['parquet', 'parquet', 'csv', 'tsv', 'txt'])}"
    try:
        if file.suffix == ".parquet":
            frame.write_parquet(file)
        else:
            frame.write_csv(file, separator="," if file.suffix == ".csv" else "\t")
    except pl.exceptions.PolarsError:  # a text file holds no lists
        file.write_bytes(chance.randbytes(200))
    if kind == "graph":
        return ["train", "--kg", file.name, *TRAIN[3:], *DATA, *SMALL]
    if kind == "ids":
        task = chance.choice(["crop", "label", "recommend"])
        option = {"crop": ["--ids"], "label": ["--out", "o.csv", "--predict"]}
        return [*base_command(task), *option.get(task, ["--out", "o.csv", "--users"]), file.name]
    task = "label" if kind == "labels" else "recommend"
    return [*base_command(task), f"--{kind}", file.name]


def forked(work: Callable[[], str]) -> str:
    """The answer of `work` in a process of its own; work that takes long is asked to stop."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        silent = os.open(os.devnull, os.O_RDWR)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        try:
            answer = work()
        except BaseException as error:
            answer = f"harness: {type(error).__name__}: {error}"
        os.write(writer, json.dumps(answer[:2000]).encode())
        os._exit(0)
    os.close(writer)
    began, asked = time.monotonic(), False
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        seconds = time.monotonic() - began
        if seconds > PATIENCE and not asked:
            os.kill(child, signal.SIGTERM)
            asked = True
        if seconds > PATIENCE + 20:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.005)
    with os.fdopen(reader) as file:
        text = file.read()
    if text:
        return json.loads(text)
    return "it does not stop on SIGTERM" if asked else "the process crashed"


def invoke(words: list[str]) -> tuple[int, str]:
    """The command in this process."""
    from typer.testing import CliRunner

    from medapps.cli.main import app

    result = CliRunner().invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return 1, repr(result.exception)
    return result.exit_code, result.output


def warm_up() -> None:
    """Import what every child needs; nothing may start threads before a fork."""
    import sklearn.linear_model  # noqa: F401
    import torch

    import medapps.cli.main
    import medapps.settings  # noqa: F401

    torch.set_num_threads(1)
    sys.stdout.flush()


def bad_input(shop: Shop) -> tuple[str, str]:
    """One bad input: what it was, and what is wrong with the answer."""
    kind, seed = shop.random.choice(["table", "setting", "line"]), shop.random.getrandbits(32)
    place = shop.place()

    def work() -> str:
        os.chdir(place)
        (place / "dir").mkdir()
        os.mkfifo(place / "fifo")
        chance = random.Random(seed)
        words = (
            table(chance, place)
            if kind == "table"
            else {"setting": setting, "line": command_line}[kind](chance)
        )
        code, text = invoke(words)
        if code in GOOD_CODES and "Traceback (most recent" not in text:
            return ""
        return f"{' '.join(words)[:300]} -> {code}: {text.strip()[-400:]}"

    reason = forked(work)
    shutil.rmtree(place)
    return f"{kind} {seed}", reason


def loaders() -> dict[str, Callable[[Path], object]]:
    """How every kind is read."""
    from medapps.crop.crop import load_crop
    from medapps.crop.embedding import Embedding
    from medapps.graph.graph import Graph
    from medapps.label.model import LabelModel
    from medapps.recommend.recommender import Recommender
    from medapps.report import Report

    return {
        "graph": Graph.load,
        "embedding": Embedding.load,
        "crop": load_crop,
        "labeller": LabelModel.load,
        "recommender": Recommender.load,
        "report": Report.load,
    }


def flipped(shop: Shop, full: Path) -> tuple[str, str]:
    """One flipped bit in a file of an artefact: reading names it."""
    found = [(f, k) for f, k in artefacts(full) if k in loaders()]
    kind = shop.random.choice(sorted({k for _, k in found}))
    folder = shop.random.choice([f for f, k in found if k == kind])
    file = shop.random.choice(sorted(path for path in folder.iterdir() if path.is_file()))
    before = file.read_bytes()
    position, bit = shop.random.randrange(len(before)), 1 << shop.random.randrange(8)
    after = bytearray(before)
    after[position] ^= bit

    def work() -> str:
        from medapps.errors import MedappsError

        try:
            loaders()[kind](folder)
        except MedappsError as error:
            return "" if str(folder) in str(error) else f"the error names no folder: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        if file.name == "manifest.json" and json.loads(after) == json.loads(before):
            return ""
        return "not noticed"

    file.write_bytes(after)
    try:
        reason = forked(work)
    finally:
        file.write_bytes(before)
    return f"{kind}/{file.name} byte {position} bit {bit}", reason
