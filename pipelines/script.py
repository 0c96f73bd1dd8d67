"""What the scripts of the studies share: options, workspace, ranks of a method, and a table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

import medapps as ma
from medapps.config import resolve
from medapps.evaluate.link_prediction import RankOptions
from medapps.model.rules import RULES
from medapps.settings import Settings
from medapps.stages import Runner, rank_stage
from medapps.study.measure import sources
from medapps.study.plan import settings_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

say = Console(stderr=True, highlight=False, soft_wrap=True).print


def start(main: Callable[[], None]) -> None:
    """Run a script; what its user can mend is said in a line, as `medapps` does."""
    try:
        main()
    except ma.MedappsError as error:
        say(f"{Path(sys.argv[0]).stem}: {error}", markup=False)
        sys.exit(2)


def options(text: str | None, *, many: bool = False) -> argparse.ArgumentParser:
    """A parser with what every study takes; `many` takes several dataset folders."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, nargs="+" if many else None, help="dataset folder")
    parser.add_argument(
        "--config",
        type=Path,
        nargs="+",
        default=[],
        help="files with `train` and `baseline`; of several the one whose study names the data",
    )
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="train.KEY=V")
    parser.add_argument("--scorer", choices=tuple(RULES), default=None)
    parser.add_argument("--workspace", type=Path, default=Path("workspace"))
    parser.add_argument("--no-track", action="store_true")
    parser.add_argument("--plot", type=Path, default=None, help="write a picture (PNG)")
    return parser


def runner_of(given: argparse.Namespace) -> Runner:
    """Where finished stages are kept."""
    return Runner(ma.Workspace(given.workspace), tracked=not given.no_track, say=say)


def files_of(given: argparse.Namespace) -> list[Settings]:
    """The settings of every file, or those without one."""
    flags = {"train.scorer": given.scorer}
    files: list[Path | None] = [*given.config] or [None]
    return [resolve(Settings, file=file, sets=given.sets, flags=flags) for file in files]


def settings_of(given: argparse.Namespace, data: Path) -> Settings:
    """The settings for one data set, as `medapps run` with the same file would have them."""
    return settings_at(files_of(given), data)


def settings_at(files: Sequence[Settings], data: Path) -> Settings:
    """Those of the first file whose study names the folder, else of the first file."""
    name = data.resolve().name
    for settings in files:
        for item in settings.study.data:
            if item.name is not None and Path(item.name).name == name:
                return settings_for(settings, item)
    return files[0]


def ranked(
    runner: Runner,
    graph: ma.Graph,
    settings: Settings,
    method: str,
    dims: Sequence[int],
    seed: int,
    limit: int | None,
) -> list[ma.Report]:
    """Reports of test ranks in ascending dims; none for a method without relations."""
    study = settings.study
    reports: list[ma.Report] = []
    for source in sources(runner, graph, settings, method, dims, seed):
        if source.relations is None:
            say(f"{method} has no relations: it cannot be ranked.")
            return []
        options = RankOptions(candidates=study.candidates, limit=limit or study.limit)
        stage = rank_stage(runner, graph, source, options)
        reports += [report for report, _ in stage]
    return sorted((report for report in reports if report.dim in dims), key=lambda r: r.dim)


def spread(values: Sequence[float], digits: int = 4) -> str:
    """Mean over seeds and, where there are several, their deviation."""
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def under(axes: Axes, **how: Any) -> None:
    """A legend below the axes, where it covers no point."""
    how |= {"bbox_to_anchor": (0.5, -0.2), "ncols": 2}
    axes.legend(loc="upper center", fontsize="x-small", **how)
