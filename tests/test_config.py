"""Precedence, unknown keys, numbers in YAML, and the dump that runs again."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from medapps.config import Config, dump_yaml, flat, resolve
from medapps.errors import MedappsError
from medapps.settings import Settings


class Inner(Config):
    rate: float = 0.1
    sizes: tuple[int, ...] = (1, 2)


class Outer(Config):
    inner: Inner = Inner()
    name: str = "a"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_flag_beats_set_beats_file_beats_default(tmp_path: Path) -> None:
    file = write(tmp_path / "c.yaml", "inner: {rate: 0.2, sizes: [3]}\nname: file\n")
    resolved = resolve(
        Outer, file=file, sets=["inner.rate=0.3", "name=set"], flags={"inner.rate": 0.4}
    )
    assert (resolved.inner.rate, resolved.inner.sizes, resolved.name) == (0.4, (3,), "set")
    assert resolve(Outer).inner.rate == 0.1


def test_a_flag_that_was_not_given_changes_nothing() -> None:
    assert resolve(Outer, sets=["name=kept"], flags={"name": None}).name == "kept"


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.e-3", ".1e-2", "+1e-3"])
def test_scientific_notation_is_a_number(tmp_path: Path, text: str) -> None:
    file = write(tmp_path / "c.yaml", f"inner: {{rate: {text}}}\n")
    assert resolve(Outer, file=file).inner.rate == pytest.approx(1e-3)
    assert resolve(Outer, sets=[f"inner.rate={text}"]).inner.rate == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("key", "near"),
    [("inner.rat", "inner.rate"), ("nam", "name"), ("rate", "inner.rate"), ("innr.rate", "inner")],
)
def test_an_unknown_key_names_the_nearest_known_one(key: str, near: str) -> None:
    with pytest.raises(MedappsError, match=f"did you mean '{near}"):
        resolve(Outer, sets=[f"{key}=1"])


def test_a_wrong_type_names_key_and_value() -> None:
    with pytest.raises(MedappsError, match=r"inner\.rate: .*not 'fast'"):
        resolve(Outer, sets=["inner.rate=fast"])


def test_a_section_given_as_a_scalar_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MedappsError, match="inner"):
        resolve(Outer, file=write(tmp_path / "c.yaml", "inner: 3\n"))


@pytest.mark.parametrize("text", ["a: [1", "- 1\n- 2\n", "\t:"])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(MedappsError, match=r"c\.yaml"):
        resolve(Outer, file=write(tmp_path / "c.yaml", text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MedappsError, match=r"no config file .*gone\.yaml"):
        resolve(Outer, file=tmp_path / "gone.yaml")


def test_set_needs_an_equals_sign() -> None:
    with pytest.raises(MedappsError, match=r"section\.key=value"):
        resolve(Outer, sets=["inner.rate"])


def test_the_dump_of_all_settings_resolves_to_itself(tmp_path: Path) -> None:
    settings = resolve(Settings, sets=["train.lr=1e-2", "train.dims=[4, 8]"])
    file = write(tmp_path / "dump.yaml", dump_yaml(settings))
    assert resolve(Settings, file=file) == settings


def test_flat_gives_dotted_names() -> None:
    assert flat({"a": {"b": 1, "c": {"d": [2]}}, "e": {}}) == {"a.b": 1, "a.c.d": [2], "e": {}}


BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in pairwise("abcdefghi"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, r"c\.yaml, line 2.*aliases are not allowed"),
        ("a: " + "[" * 5000 + "]" * 5000, r"c\.yaml, line 1.*nested more than 32 times"),
        ("a:\n" + "".join(" " * i + "- \n" for i in range(1, 50)), "nested more than 32 times"),
        ("a: " + "x" * 2**20, "too long"),
    ],
)
def test_a_file_that_would_grow_without_bounds_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(MedappsError, match=message):
        resolve(Outer, file=write(tmp_path / "c.yaml", text))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c.yaml")
    with pytest.raises(MedappsError, match="not a regular file"):
        resolve(Outer, file=tmp_path / "c.yaml")
