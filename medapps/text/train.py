"""The training loop of every method; random numbers are a function of seed and step.

So a state to resume from is parameters, the optimiser's averages and a counter, and a resumed
training ends with the same bits as one that was never cut off.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import BertForSequenceClassification

from medapps.errors import Interrupted, MedappsError
from medapps.text.config import TextConfig
from medapps.text.data import Encoded, epoch_batches
from medapps.text.elastic import Elastic
from medapps.text.losses import med_loss, patient_loss, plain_loss, taught_loss
from medapps.tracking import NO_RUN, Run
from medapps.train.checkpoint import Counters, has_checkpoint, load_checkpoint, save_checkpoint

LOG_EVERY = 10
Progress = Callable[[int, int, float, float], None]
"""Told after every update: updates, of how many, the loss, sentences per second."""
Lessons = tuple[Tensor, Tensor | None]
"""A teacher on every training sentence: logits (N, C) and, for pkd, first tokens (layers, N, d)."""


def train(
    net: BertForSequenceClassification,
    widths: tuple[int, ...],
    method: str,
    data: Encoded,
    config: TextConfig,
    *,
    seed: int,
    lessons: Lessons | None = None,
    run: Run = NO_RUN,
    checkpoint: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    stop: Callable[[], int] | None = None,
) -> float:
    """Fine-tune `net` in place; returns seconds of training."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    elastic = Elastic(net, widths).to(device).train()
    groups: list[dict[str, Any]] = [
        {"params": [p for p in net.parameters() if (p.dim() > 1) == matrix], "weight_decay": decay}
        for matrix, decay in ((True, config.weight_decay), (False, 0.0))
    ]
    optimiser = torch.optim.AdamW(groups, config.lr)
    per_epoch = -(-len(data) // config.batch)
    steps = config.steps or config.epochs * per_epoch
    rising = min(max(1.0, config.warmup * steps), steps - 0.5)
    state, at = _state(net, optimiser), Counters()
    identity = {"graph": "", "seed": seed, "config": config.recipe(method, widths)}
    if resume and checkpoint is not None and has_checkpoint(checkpoint):
        at = load_checkpoint(checkpoint, state, identity)
        for averages in optimiser.state.values():
            averages["step"] += at.count
    step, before = at.count, at.seconds
    labels = torch.from_numpy(data.labels).to(device)
    lengths, batches, drawn = np.array([len(one) for one in data.tokens]), [], -1
    began = saved = time.perf_counter()
    first = step
    with torch.random.fork_rng():
        while step < steps:
            epoch, turn = divmod(step, per_epoch)
            if epoch != drawn:
                batches, drawn = epoch_batches(lengths, config.batch, seed, epoch), epoch
            rows = batches[turn]
            torch.manual_seed(int(np.random.SeedSequence([seed, step]).generate_state(1)[0]))
            batch = {name: value.to(device) for name, value in data.batch(rows).items()}
            rate = config.lr * min(1.0, (step + 1) / rising, (steps - step) / (steps - rising))
            for group in optimiser.param_groups:
                group["lr"] = rate
            taught = lessons and (
                lessons[0][rows],
                None if lessons[1] is None else lessons[1][:, rows],
            )
            loss = _loss(elastic, method, batch, labels[rows], config, taught, [seed, step])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), config.clip)
            optimiser.step()
            step += 1
            value = float(loss.detach())
            if not np.isfinite(value):
                smaller = f"Take a smaller learning rate: --set text.lr={config.lr / 2:g}."
                raise MedappsError(f"The loss is no number after {step} updates.", fix=smaller)
            now = time.perf_counter()
            if step % LOG_EVERY == 0 or step == steps:
                run.metrics({"loss": value, "lr": rate}, step)
            if progress is not None:
                progress(step, steps, value, (step - first) * config.batch / (now - began))
            stopped = stop() if stop is not None and step < steps else 0
            if checkpoint is not None and (stopped or now - saved > config.checkpoint_seconds):
                at = Counters(count=step, seconds=before + now - began)
                save_checkpoint(checkpoint, state, at, identity)
                saved = time.perf_counter()
            if stopped:
                raise Interrupted(f"Stopped after {step} of {steps} updates.", stopped)
    elastic.to("cpu").eval()
    return before + time.perf_counter() - began


def _loss(
    elastic: Elastic, method: str, batch: dict[str, Tensor], labels: Tensor, config: TextConfig,
    lessons: Lessons | None, counter: list[int],
) -> Tensor:  # fmt: skip
    """The loss of one step."""
    if method == "med":
        return med_loss(elastic(batch, elastic.widths)[0], labels, elastic.widths, config.med)
    width = elastic.widths[-1]
    if method == "hat":  # one width per step
        width = int(np.random.default_rng(counter).choice(elastic.widths))
    patient = lessons is not None and lessons[1] is not None
    (logits,), tokens = elastic(batch, (width,), tokens=patient)
    if lessons is None:
        return plain_loss(logits, labels)
    loss = taught_loss(logits, labels, lessons[0].to(logits), config.teach)
    if lessons[1] is not None:
        loss = loss + config.teach.patient * patient_loss(tokens[0], lessons[1].to(logits))
    return loss


@torch.no_grad()
def teach(net: BertForSequenceClassification, data: Encoded, *, patient: bool) -> Lessons:
    """The outputs of the teacher for all training sentences, computed once."""
    width = net.config.hidden_size
    elastic = Elastic(net, (width,)).eval()
    logits = torch.empty(len(data), net.classifier.out_features)
    shape = net.config.num_hidden_layers + 1, len(data), width
    tokens = torch.empty(shape) if patient else None
    for rows in data.by_length(64):
        (some,), first = elastic(data.batch(rows), (width,), tokens=patient)
        logits[rows] = some
        if tokens is not None:
            tokens[:, rows] = first[0]
    return logits, tokens


def _state(net: BertForSequenceClassification, optimiser: torch.optim.AdamW) -> dict[str, Tensor]:
    """Parameters and Adam's averages, by name."""
    out: dict[str, Tensor] = {}
    for name, value in net.named_parameters():
        averages = optimiser.state[value]
        averages.setdefault("step", torch.tensor(0.0))
        out[name] = value.detach()
        for key in ("exp_avg", "exp_avg_sq"):
            out[f"{name}.{key}"] = averages.setdefault(key, torch.zeros_like(value))
    return out
