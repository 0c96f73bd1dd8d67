"""How good a width is on the dev sentences, and what it costs: a Report."""

from __future__ import annotations

import time

import numpy as np
import torch
from scipy.stats import spearmanr
from transformers import BertForSequenceClassification

from medapps.comparison.gather import Group, place_of
from medapps.report import Report
from medapps.store import digest_of
from medapps.text.data import Encoded, TextTask, encode
from medapps.text.elastic import submodel
from medapps.text.model import TextModel


@torch.no_grad()
def predict(model: BertForSequenceClassification, data: Encoded) -> np.ndarray:
    """Logits float32 (N, C) in the order of the sentences."""
    out = np.empty((len(data), model.classifier.out_features), np.float32)
    for rows in data.by_length(64):
        out[rows] = model(**data.batch(rows)).logits.numpy()
    return out


def units_of(task: TextTask, logits: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Per sentence, (1, N): what every metric of the task is computed and resampled from."""
    if not task.classes:
        return {"target": labels[None], "score": logits[:, 0][None]}
    guess = logits.argmax(1)
    found = {"truth": labels, "guess": guess, "accuracy": guess == labels}
    return {name: value[None].astype(np.float32) for name, value in found.items()}


def metrics_of(task: TextTask, units: dict[str, np.ndarray]) -> dict[str, float]:
    """The task's metrics; a constant guess has no correlation, which counts as 0."""
    report = Report(task="text", method="", units=units)
    group = Group(place_of(report), "", 0, (report,))
    out = {}
    for name in task.metrics:
        if name == "spearman":
            constant = np.ptp(units["score"]) == 0
            value = 0.0 if constant else spearmanr(units["score"][0], units["target"][0])[0]
        else:
            found = group.measured(name)
            assert found is not None, name
            value = found.value
        out[name] = float(value)
    return out


def report_of(model: TextModel, task: TextTask, width: int, method: str) -> Report:
    """Measure one width on the dev sentences."""
    dev = encode(model.tokenizer, task.dev, task.labels(task.dev), model.about["max_length"])
    alone = submodel(model.net, width).eval()
    units = units_of(task, predict(alone, dev), dev.labels)
    size = float(alone.num_parameters())
    recipe = dict(model.manifest.config) if model.manifest else {}
    seed = int(recipe.pop("seed", 0))
    return Report(
        task=f"text-{task.name}",
        method=method,
        dim=width,
        data=task.data,
        seeds=(seed,),
        by_seed={name: [value] for name, value in metrics_of(task, units).items()},
        units=units,
        unit_digest=digest_of(dict(task.digests) | {"task": task.name}),
        cost={"train_seconds": model.about["train_seconds"], "bytes": 4 * size, "parameters": size}
        | {"milliseconds": milliseconds(alone, dev)},
        details={"training": seed, "recipe": digest_of(recipe)[:16], "sentences": len(dev)}
        | {"classes": list(task.classes), "constant": constant_guess(task)},
    )


def constant_guess(task: TextTask) -> float:
    """The task's first metric for the most frequent training class; 0 for a regression."""
    if not task.classes:
        return 0.0
    labels = task.labels(task.dev)
    logits = np.zeros((len(labels), len(task.classes)), np.float32)
    logits[:, np.bincount(task.labels(task.train)).argmax()] = 1
    return metrics_of(task, units_of(task, logits, labels))[task.metrics[0]]


@torch.no_grad()
def milliseconds(model: BertForSequenceClassification, data: Encoded) -> float:
    """Median time of one sentence at a time, by a model of its own."""
    rows = np.linspace(0, len(data) - 1, min(50, len(data))).astype(int)
    times = []
    for row in [rows[0], *rows]:  # the first one warms up
        batch = data.batch(np.array([row]))
        began = time.perf_counter()
        model(**batch)
        times.append(time.perf_counter() - began)
    return 1000 * float(np.median(times[1:]))
