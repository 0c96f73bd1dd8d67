"""Who follows a training: its seed and run, its progress, who may stop it, where it is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from medapps.tracking import NO_RUN, Run


@dataclass(frozen=True)
class Progress:
    """Where a training stands, for a progress bar."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    triples_per_second: float
    seconds_left: float
    part: str = ""
    """Which of several trainings it is, where there are several."""


def silent(text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Session:
    """What surrounds a training and does not change its result, but for the seed."""

    seed: int = 0
    run: Run = NO_RUN
    """Where figures are logged."""
    progress: Callable[[Progress], None] | None = None
    stop: Callable[[], int] | None = None
    """Asked after every step; what is not zero, a signal perhaps, stops the training."""
    checkpoint_dir: Path | None = None
    """Where the state is written now and then, and when the training is stopped."""
    resume: bool = False
    """Continue from the state in checkpoint_dir, if there is one."""
    say: Callable[[str], None] = silent
    """Tells people what was decided."""
    searches: Path | None = None
    """Where the trials of searches are kept."""

    def inside(self, name: str) -> Session:
        """The same with checkpoints in a folder of that name, always resumed."""
        folder = self.checkpoint_dir and Path(self.checkpoint_dir) / name
        return replace(self, checkpoint_dir=folder, resume=True)

    def trial(self, seed: int | None = None, part: str = "") -> Session:
        """For a short training beside it: not logged, not kept; `part` names it in progress."""
        told = self.progress
        if told is not None and part:
            told = _named(told, part)
        seed = self.seed if seed is None else seed
        return Session(seed=seed, progress=told, stop=self.stop)


def _named(told: Callable[[Progress], None], part: str) -> Callable[[Progress], None]:
    return lambda now: told(replace(now, part=part))
