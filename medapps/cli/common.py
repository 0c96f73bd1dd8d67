"""What every command shares: global options, one way to end, one way to print.

A command is a function `f(job: Job, ...own options...) -> Result` under `@command("name")`. The
decorator adds the global options, turns exceptions into exit codes (0 done, 2 wrong input, 1 a bug,
130/143 interrupted) and prints the result for people or, with `--json`, as one JSON object. Texts
are printed as they are: a name in brackets is no markup.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.console import Console, RenderableType
from rich.text import Text
from typer.core import TyperGroup

from medapps.errors import Interrupted, MedappsError, masked

if TYPE_CHECKING:
    from medapps.settings import Settings
    from medapps.stages import Runner
    from medapps.store import Workspace
    from medapps.tracking import Run


class JsonGroup(TyperGroup):
    """Commands whose refusal of the command line is a JSON object too where --json is given."""

    _json = False

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        self._json = "--json" in args
        with self._refusals():
            return super().make_context(info_name, args, *more, **extra)

    def invoke(self, ctx: Any) -> Any:
        with self._refusals():
            return super().invoke(ctx)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if self._json and hasattr(error, "format_message"):
                _echo_error(getattr(error, "exit_code", 2), error.format_message())
            raise


app = typer.Typer(
    name="medapps",
    cls=JsonGroup,
    help="Train one croppable knowledge-graph embedding and use it on every device.",
    epilog="Start with: medapps demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_FULL = re.compile(r"os error 28\b|No space left on device|disk is full")
_ISSUES = "This is a bug in medapps. Run again with --debug to see where, and please report it."


@dataclass
class Result:
    """What a command has to say: keys for `--json`, something to look at for people."""

    values: dict[str, Any]
    show: list[RenderableType] = field(default_factory=list)
    exit_code: int = 0


@dataclass
class Job:
    """The global options of one command, and what follows from them."""

    command: str
    root: Path
    config: Path | None
    sets: list[str]
    seed: int
    json: bool
    verbose: int
    tracked: bool
    force: bool
    dump_config: bool
    began: float = field(default_factory=time.perf_counter)
    run_id: str | None = None

    @property
    def workspace(self) -> Workspace:
        from medapps.store import Workspace

        return Workspace(self.root)

    @property
    def runner(self) -> Runner:
        """Where stages are kept and how they are run."""
        from medapps.stages import Runner

        return Runner(self.workspace, self.tracked, self.force, say=self.say, on_run=self._remember)

    def quieten(self) -> None:
        """Say and print nothing: another process of the group does."""
        self.json, self.verbose = False, -1

    def _remember(self, run: Run) -> None:
        self.run_id = run.id

    @property
    def console(self) -> Console:
        """For progress and remarks: standard error, silent with -q."""
        return Console(stderr=True, quiet=self.verbose < 0, markup=False)

    def say(self, text: str) -> None:
        """A remark on standard error."""
        self.console.print(masked(text), highlight=False, soft_wrap=True)

    @property
    def given(self) -> set[str]:
        """What --set names."""
        from medapps.config import split_set

        return {split_set(item)[0] for item in self.sets}

    def settings(
        self,
        flags: Mapping[str, Any] | None = None,
        change: Callable[[Settings], Settings] | None = None,
    ) -> Settings:
        """The resolved configuration; `flags` maps dotted keys to values, None when not given, and
        `change` has the last word.
        """
        from medapps.config import dump_yaml, resolve
        from medapps.settings import Settings

        settings = resolve(Settings, file=self.config, sets=self.sets, flags=flags)
        if change is not None:
            settings = change(settings)
        if self.dump_config:
            typer.echo(dump_yaml(settings), nl=False)
            raise typer.Exit
        return settings

    @contextmanager
    def stopping(self) -> Iterator[Callable[[], int]]:
        """Ctrl-C and SIGTERM set a flag instead of breaking off; the block asks for the signal."""
        caught = 0

        def remember(number: int, _frame: object) -> None:
            nonlocal caught
            if caught:
                raise Interrupted(signal_number=number)
            caught = number
            self.say("Stopping: writing a state to resume from. Ctrl-C again leaves at once.")

        before = {s: signal.signal(s, remember) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield lambda: caught
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


Command = Callable[..., Result]

_SharedOptions = {
    "workspace": Annotated[
        Path,
        typer.Option("--workspace", envvar="MEDAPPS_WORKSPACE", help="Where everything is kept."),
    ],
    "config": Annotated[Path | None, typer.Option("--config", help="A YAML file of settings.")],
    "sets": Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="One setting; may be repeated."),
    ],
    "seed": Annotated[
        int | None, typer.Option("--seed", min=0, max=2**63 - 1, help="Fixes all randomness.")
    ],
    "as_json": Annotated[bool, typer.Option("--json", help="Print one JSON object.")],
    "verbose": Annotated[bool, typer.Option("-v", "--verbose", help="Say more.")],
    "quiet": Annotated[bool, typer.Option("-q", "--quiet", help="Say nothing but the result.")],
    "force": Annotated[bool, typer.Option("--force", help="Do it again; replace what exists.")],
    "no_track": Annotated[bool, typer.Option("--no-track", help="Keep no MLflow run.")],
    "dump_config": Annotated[
        bool, typer.Option("--dump-config", help="Print the resolved settings and stop.")
    ],
    "debug": Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")],
}
_SWITCHES = ("as_json", "verbose", "quiet", "force", "no_track", "dump_config", "debug")
_DEFAULTS: dict[str, Any] = dict.fromkeys(_SWITCHES, False) | {
    "workspace": Path("workspace"),
    "config": None,
    "sets": None,
    "seed": None,
}
_PANEL = "Options of every command"


def command(name: str, *, example: str, group: typer.Typer = app) -> Callable[[Command], Command]:
    """Make `f(job, ...)` a command with the global options."""

    def decorate(function: Command) -> Command:
        @wraps(function)
        def run(**given: Any) -> None:
            shared = {key: given.pop(key) for key in _SharedOptions}
            _perform(function, name, shared, given)

        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(function, eval_str=True).parameters.values()
            if parameter.name != "job"
        ]
        run.__signature__ = inspect.Signature(own + _shared_parameters())  # type: ignore[attr-defined]
        group.command(name, epilog=f"Example: {example}")(run)
        return function

    return decorate


def _shared_parameters() -> list[inspect.Parameter]:
    parameters = []
    for name, annotation in _SharedOptions.items():
        get_args(annotation)[1].rich_help_panel = _PANEL
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_DEFAULTS[name],
                annotation=annotation,
            )
        )
    return parameters


def _perform(
    function: Command, name: str, shared: Mapping[str, Any], own: Mapping[str, Any]
) -> None:
    job = Job(
        command=name,
        root=shared["workspace"],
        config=shared["config"],
        sets=shared["sets"] or [],
        seed=shared["seed"] or 0,
        json=shared["as_json"],
        verbose=int(shared["verbose"]) - int(shared["quiet"]),
        tracked=not shared["no_track"],
        force=shared["force"],
        dump_config=shared["dump_config"],
    )
    signal.signal(signal.SIGTERM, _terminate)
    with _exit_codes(job, debug=shared["debug"]):
        _look_after(job)
        result = function(job, **own)
        _print(job, result)
        if result.exit_code:
            raise typer.Exit(result.exit_code)


def _look_after(job: Job) -> None:
    """Before a command uses a workspace: is it one, was it moved, did a process die in it?"""
    from medapps.tracking.sqlite import check_places, mend

    if job.command == "doctor" or job.dump_config:
        return
    check_places(job.root)
    if job.tracked and not os.environ.get("MLFLOW_TRACKING_URI"):
        with suppress(MedappsError):  # who needs the store will hear of it
            moved = mend(job.root)
            if moved:
                job.say(moved)


def _terminate(number: int, _frame: object) -> None:
    raise Interrupted(signal_number=number)


def print_once(job: Job, result: Result) -> None:
    """Print a result while the command goes on; its end prints no second object."""
    _print(job, result)
    job.json = False


def _print(job: Job, result: Result) -> None:
    if job.json:
        values = {
            "status": "ok" if result.exit_code == 0 else "error",
            "run_id": job.run_id,
            "artifact": None,
            "seconds": round(time.perf_counter() - job.began, 3),
            "seed": job.seed,
        }
        typer.echo(masked(json.dumps(values | result.values, default=_plain)))
        return
    out = Console(markup=False)
    for item in result.show:
        out.print(item, highlight=False, soft_wrap=isinstance(item, (str, Text)))


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


@contextmanager
def _exit_codes(job: Job, *, debug: bool) -> Iterator[None]:
    """The one place that decides how a command ends."""
    try:
        yield
    except typer.Exit:
        raise
    except MedappsError as error:
        _fail(job, 2, str(error), debug)
    except (KeyboardInterrupt, Interrupted) as error:
        number = getattr(error, "signal_number", int(signal.SIGINT))
        _fail(job, 128 + number, str(error) or "stopped", debug)
    except MemoryError as error:
        _fail(job, 2, f"Out of memory: {error}. See `medapps doctor`.", debug)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:
            _fail(job, 2, f"{error.filename or job.root} cannot be used: {error.strerror}.", debug)
        if _FULL.search(str(error)):
            _fail(job, 2, f"{job.root} cannot be written: the disk is full.", debug)
        _fail(job, 1, f"{type(error).__name__}: {error}\n{_ISSUES}", debug)


def _fail(job: Job, code: int, message: str, debug: bool) -> None:
    if debug:
        typer.echo(masked(traceback.format_exc()), err=True)
    typer.echo(f"medapps {job.command}: {masked(message)}", err=True)
    if job.json:
        _echo_error(code, message)
    raise typer.Exit(code)


def _echo_error(code: int, message: str) -> None:
    typer.echo(json.dumps({"status": "error", "error": masked(message), "exit_code": code}))
