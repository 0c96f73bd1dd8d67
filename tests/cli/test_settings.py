"""Settings and options out of range end with exit code 2 and a sentence."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from medapps.cli.main import app


def dump(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["train", "--kg", "x", "--dump-config", *words])
    return result.exit_code, result.stderr


@pytest.mark.parametrize("seed", ["-1", str(2**63), str(2**64 + 1)])
@pytest.mark.parametrize(
    "where", ["--seed", "label.split_seed", "baseline.search.seed", "study.seeds"]
)
def test_a_seed_that_would_wrap_around_is_refused(where: str, seed: str) -> None:
    def words(value: str) -> list[str]:
        if where == "--seed":
            return [where, value]
        return ["--set", f"{where}=[{value}]" if where.endswith("seeds") else f"{where}={value}"]

    code, err = dump(*words(seed))
    assert code == 2 and where.rpartition(".")[2] in err
    assert dump(*words(str(2**63 - 1)))[0] == 0
