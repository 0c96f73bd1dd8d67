"""Which sizes a trained embedding may be cut to."""

from __future__ import annotations

from collections.abc import Sequence

from medapps.errors import MedappsError


def check_dim(dim: int, trained: Sequence[int], *, allow_untrained: bool = False) -> str | None:
    """Refuse a dim that was not trained, naming the nearest ones; a warning when it is allowed."""
    if dim in trained:
        return None
    near = " and ".join(str(d) for d in nearest_dims(dim, trained))
    problem = (
        f"dim {dim} was not trained; trained are {', '.join(str(d) for d in sorted(trained))}, "
        f"nearest {near}."
    )
    if dim < 1 or dim > max(trained):
        raise MedappsError(problem, fix=f"Use --dim {nearest_dims(dim, trained)[0]}.")
    if not allow_untrained:
        raise MedappsError(
            problem,
            fix=f"Use --dim {_closest(dim, trained)}, or --allow-untrained to take the first {dim} "
            "coordinates all the same.",
        )
    return f"{problem} Its quality was never trained for nor measured."


def nearest_dims(dim: int, trained: Sequence[int]) -> list[int]:
    """The next smaller and the next larger trained dim, as far as they exist."""
    smaller = [d for d in trained if d < dim]
    larger = [d for d in trained if d > dim]
    return ([max(smaller)] if smaller else []) + ([min(larger)] if larger else [])


def _closest(dim: int, trained: Sequence[int]) -> int:
    return min(trained, key=lambda d: (abs(d - dim), d))
