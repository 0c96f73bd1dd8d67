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


@pytest.mark.parametrize(
    "setting",
    [
        "label.dropout=[1.0]",
        "label.dropout=[]",
        "label.weight_decay=[]",
        "label.weight_decay=[.inf]",
        "label.learning_rate=1e30",
        "label.hidden=1000000000000",
        "recommend.user_decays=[.nan]",
        "recommend.ncf.user_decay=.inf",
        "recommend.ncf.learning_rate=1e30",
        "recommend.ncf.factors=10000000000",
        "recommend.ncf.layers=[10000000000]",
        "recommend.ncf.negatives=1000000000",
        "recommend.sampled_negatives=1000000000000",
        "train.lr=1e30",
        "train.lr=.inf",
        "train.penalty=1e300",
        "train.threads=100000",
        "train.batch=1000000000000",
        "train.negatives=1000000000000",
        "train.dims=[1000000000]",
        "train.memory=" + 400 * "9",
        "train.checkpoint_seconds=.nan",
        "baseline.search.margins=[]",
        "baseline.search.rates=[1e300]",
        "graph.separator=é",
        "graph.separator=ab",
        "study.repeats=1000000000",
        "crop.tiers.phone.dim=10000000000",
        "train.lr=" + 5000 * "9",
        "train.lr=2020-13-45",
    ],
)
def test_a_setting_out_of_range_is_refused(setting: str) -> None:
    code, err = dump("--set", setting)
    assert code == 2 and setting.partition("=")[0].rpartition(".")[2] in err


def test_settings_in_range_pass() -> None:
    for setting in ("train.lr=1000", "graph.separator=;", "graph.separator='|'", "train.penalty=0"):
        assert dump("--set", setting)[0] == 0


def test_a_wrong_form_is_told_in_words_and_not_as_a_pattern() -> None:
    code, err = dump("--set", "graph.separator=ab")
    assert code == 2 and "one ASCII character" in err and "'ab'" in err and "pattern" not in err
    code, err = dump("--set", "study.name='a b'")
    assert code == 2 and "letters" in err and "'a b'" in err and "pattern" not in err
