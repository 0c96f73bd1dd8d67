"""What a method gives at several sizes: one training of MED, or one crop per size."""

from __future__ import annotations

from collections.abc import Sequence

from medapps.crop.crop import Crop
from medapps.crop.embedding import Embedding
from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.settings import Settings
from medapps.stages import Bench, baseline_stage, train_stage


def sources(
    bench: Bench, graph: Graph, settings: Settings, method: str, dims: Sequence[int], seed: int
) -> list[Embedding | Crop]:
    """Everything that is needed for `dims`, as stages that are kept.

    A student is smaller than its teacher: from the teacher's size on dt stands in for it.
    """
    train, baseline = settings.train, settings.baseline
    if method == "med":
        missing = sorted(set(dims) - set(train.dims))
        if missing:
            raise MedappsError(
                f"Dimension {missing[0]} is not trained; train.dims are "
                f"{', '.join(map(str, train.dims))}.",
                fix=f"Add it: --set 'train.dims={sorted({*train.dims, *dims})}'.",
            )
        return [train_stage(bench, graph, train, seed=seed, resume=True)[0]]
    teacher = baseline.teacher_dim or train.dims[-1]
    return [
        baseline_stage(
            bench, graph, method if dim < teacher else "dt", dim, baseline, train, seed=seed
        )[0]
        for dim in dims
    ]
