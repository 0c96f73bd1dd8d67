"""Where a task's vectors come from: who made them, from what, at which cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from medapps.crop.crop import Crop
from medapps.report import Report
from medapps.store import digest_of

if TYPE_CHECKING:
    from medapps.crop.embedding import Embedding


@dataclass(frozen=True)
class Origin:
    """The maker of some vectors."""

    method: str
    dim: int
    digest: str
    seed: int = 0
    """Seed of the training."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the training without the seed: equal ones are trainings of the same thing."""
    cost: Mapping[str, float] = field(default_factory=dict)
    """train_seconds, teachers included, and bytes on the device."""

    def tags(self, task: str, data: str) -> dict[str, object]:
        """How runs of a task on these vectors are found."""
        return {
            "method": self.method,
            "dim": self.dim,
            "task": task,
            "data": data,
            "seed": self.seed,
        }

    def mark(self, report: Report, options: Mapping[str, Any]) -> Report:
        """The report with what a comparison must know: cost, training and recipe."""
        recipe = [dict(self.recipe), dict(options)]
        marks = {"training": self.seed, "recipe": digest_of(recipe)[:16]}
        seconds = report.cost.get("train_seconds", 0.0) if report.task != "rank" else 0.0
        return replace(
            report,
            method=self.method,
            dim=self.dim,
            cost={"task_seconds": seconds} | dict(self.cost),
            details=report.details | marks,
        )


def origin_of(source: Embedding | Crop, dim: int) -> Origin:
    """The origin of an embedding's prefix or of a crop, as far as its manifest tells."""
    crop = source if isinstance(source, Crop) else source.crop(dim)
    manifest = source.manifest
    settings = dict(manifest.config) if manifest else {}
    seed = int(settings.pop("seed", crop.about.get("seed", 0)))
    digest = manifest.digest if manifest else ""
    return Origin(
        method=crop.method,
        dim=dim,
        digest=digest_of([digest, dim, settings]),  # two recipes may yield the same vectors
        seed=seed,
        recipe=settings,
        cost={
            "train_seconds": float(crop.about.get("train_seconds", 0.0)),
            "bytes": float(crop.nbytes),
        },
    )
