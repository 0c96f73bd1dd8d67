"""A tiny random BERT with a real tokenizer, and a task that it can learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

pytest.importorskip("transformers")
import torch
from transformers import BertConfig, BertForSequenceClassification

from medapps.text.config import TextConfig
from medapps.text.data import TextTask, read_task
from medapps.text.model import find_base, learn_tokenizer, write_pretrained

GOOD, BAD = ("good", "fine", "lovely"), ("bad", "poor", "awful")
FILL = ("a", "film", "the", "and", "plot", "some")


def sentences(count: int, seed: int) -> pl.DataFrame:
    """Filler words with one good or bad word, which is the label."""
    draws = np.random.default_rng(seed)
    label = draws.integers(0, 2, count)
    rows = []
    for one in label:
        words = list(draws.choice(FILL, draws.integers(3, 9)))
        words.insert(int(draws.integers(0, len(words))), str(draws.choice((BAD, GOOD)[one])))
        rows.append(" ".join(words))
    return pl.DataFrame({"sentence": rows, "label": label})


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a task of two classes and a regression on pairs."""
    folder = tmp_path_factory.mktemp("tasks")
    for part, count, seed in (("train", 192, 0), ("dev", 64, 1)):
        frame = sentences(count, seed)
        other = sentences(count, seed + 2)
        near = 5.0 * (frame["label"] == other["label"]).cast(pl.Float64)
        pairs = pl.DataFrame({"sentence1": frame["sentence"], "sentence2": other["sentence"]})
        for name, table in (("mood", frame), ("alike", pairs.with_columns(label=near))):
            (folder / name).mkdir(exist_ok=True)
            table.write_parquet(folder / name / f"{part}.parquet")
    return folder


@pytest.fixture(scope="session")
def mood(tasks: Path) -> TextTask:
    return read_task(tasks, "mood")


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory, mood: TextTask) -> Path:
    """Two layers, width 32, four heads of 8, random values and gains."""
    folder = tmp_path_factory.mktemp("bert")
    tokenizer = learn_tokenizer(mood)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    net = BertForSequenceClassification(config)
    with torch.no_grad():  # nothing symmetric: biases and gains differ too
        for value in net.parameters():
            value.add_(torch.randn_like(value), alpha=0.1)
    write_pretrained(net, tokenizer, folder)
    return folder


@pytest.fixture
def net(tiny_bert: Path, mood: TextTask) -> BertForSequenceClassification:
    found, _ = find_base(tiny_bert, scratch=False).start(mood, 0, "none")
    return found.eval()


@pytest.fixture
def config() -> TextConfig:
    return TextConfig(widths=(12, 16, 32), epochs=4, batch=16, lr=1e-2, max_length=32)
