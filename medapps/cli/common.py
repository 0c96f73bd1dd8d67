"""What every command shares: options, one way to end, one way to print.

A command is a function `f(job: Job, ...own options...) -> Result` under `@command("name")`. The
decorator adds the options of every command and those that are settings under a shorter name, turns
exceptions into exit codes (0 done, 2 wrong input, 1 a bug, 130/143 interrupted) and prints the
result for people or, with `--json`, as one JSON object. Texts are printed as they are: a name in
brackets is no markup.
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
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console, RenderableType
from rich.text import Text
from typer.core import TyperGroup

from medapps.errors import Interrupted, MedappsError, masked

if TYPE_CHECKING:
    from medapps.config import Config
    from medapps.settings import Settings
    from medapps.stages import Runner
    from medapps.store import Workspace
    from medapps.tracking import Run

Model = TypeVar("Model", bound="Config")


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


def _shared(*names: str, help: str, **more: Any) -> Any:
    """An option of every command."""
    return typer.Option(*names, help=help, rich_help_panel="Options of every command", **more)


@dataclass
class Job:
    """The options of every command, and what follows from them."""

    command: str
    flags: dict[str, Any]
    """The settings that have an option of their own, by their dotted keys."""
    root: Annotated[
        Path, _shared("--workspace", envvar="MEDAPPS_WORKSPACE", help="Where everything is kept.")
    ] = Path("workspace")
    config: Annotated[Path | None, _shared("--config", help="A YAML file of settings.")] = None
    sets: Annotated[
        list[str] | None,
        _shared("--set", metavar="SECTION.KEY=VALUE", help="One setting; may be repeated."),
    ] = None
    seed: Annotated[
        int,
        _shared("--seed", min=0, max=2**63 - 1, help="Fixes all randomness.", show_default=False),
    ] = 0
    json: Annotated[bool, _shared("--json", help="Print one JSON object.")] = False
    verbose: Annotated[bool, _shared("-v", "--verbose", help="Say more.")] = False
    quiet: Annotated[bool, _shared("-q", "--quiet", help="Say nothing but the result.")] = False
    force: Annotated[bool, _shared("--force", help="Do it again; replace what exists.")] = False
    no_track: Annotated[bool, _shared("--no-track", help="Keep no MLflow run.")] = False
    dump_config: Annotated[
        bool, _shared("--dump-config", help="Print the resolved settings and stop.")
    ] = False
    debug: Annotated[bool, _shared("--debug", help="Show the traceback of an error.")] = False

    def __post_init__(self) -> None:
        self.began = time.perf_counter()
        self.run_id: str | None = None
        self.quiet = self.quiet and not self.verbose

    @property
    def tracked(self) -> bool:
        """Whether MLflow runs are kept."""
        return not self.no_track

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
        self.json, self.quiet = False, True

    def _remember(self, run: Run) -> None:
        self.run_id = run.id

    @property
    def console(self) -> Console:
        """For progress and remarks: standard error, silent with -q."""
        return Console(stderr=True, quiet=self.quiet, markup=False)

    def say(self, text: str) -> None:
        """A remark on standard error."""
        self.console.print(masked(text), highlight=False, soft_wrap=True)

    @property
    def given(self) -> set[str]:
        """What --set names."""
        from medapps.config import split_set

        return {split_set(item)[0] for item in self.sets or ()}

    def settings(
        self,
        change: Callable[[Settings], Settings] | None = None,
        base: Mapping[str, Any] | None = None,
    ) -> Settings:
        """The resolved configuration; `base` is in the place of defaults, and `change` has the last
        word.
        """
        from medapps.settings import Settings

        return self.resolved(Settings, change, base)

    def resolved(
        self,
        model: type[Model],
        change: Callable[[Model], Model] | None = None,
        base: Mapping[str, Any] | None = None,
    ) -> Model:
        """The configuration by a model of its sections; with --dump-config the command ends."""
        from medapps.config import dump_yaml, resolve

        found = resolve(model, file=self.config, sets=self.sets or (), flags=self.flags, base=base)
        if change is not None:
            found = change(found)
        if self.dump_config:
            typer.echo(dump_yaml(found), nl=False)
            raise typer.Exit
        return found

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


@dataclass(frozen=True)
class Setting:
    """An option that sets a key of the configuration, as --set does."""

    key: str
    help: str
    kind: type = str
    """str, int, bool, or list: words with commas between them."""
    value: object = None
    """What a switch sets, if not true or false."""

    def parameter(self, names: str) -> inspect.Parameter:
        """It as a parameter of a command; `names` as typer takes them."""
        kind = bool if self.value is not None else str if self.kind is list else self.kind
        declared = Annotated[kind | None, typer.Option(names, help=self.help)]  # type: ignore[valid-type]
        name = names.partition("/")[0].strip("-").replace("-", "_")
        return inspect.Parameter(name, _KEYWORD, default=None, annotation=declared)

    def read(self, given: Any) -> object:
        """The value for what stands on the command line; None when nothing does."""
        if self.value is not None:
            return self.value if given else None
        return given.split(",") if given and self.kind is list else given


Command = Callable[..., Result]
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def command(
    name: str,
    *,
    example: str,
    group: typer.Typer = app,
    settings: Mapping[str, Setting] | None = None,
) -> Callable[[Command], Command]:
    """Make `f(job, ...)` a command with the options of every command and those of `settings`."""
    short = [(setting.parameter(names), setting) for names, setting in (settings or {}).items()]
    shared = list(inspect.signature(Job, eval_str=True).parameters.values())[2:]

    def decorate(function: Command) -> Command:
        @wraps(function)
        def run(**given: Any) -> None:
            flags = {setting.key: setting.read(given.pop(p.name)) for p, setting in short}
            options = {option.name: given.pop(option.name) for option in shared}
            _perform(function, Job(name, flags, **options), given)

        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        options = [*own, *(option for option, _ in short), *shared]
        options = [option.replace(kind=_KEYWORD) for option in options]
        run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        group.command(name, epilog=f"Example: {example}")(run)
        return function

    return decorate


def command_group(name: str, help: str) -> typer.Typer:
    """Several commands under one name."""
    names = {"help_option_names": ["-h", "--help"]}
    group = typer.Typer(help=help, no_args_is_help=True, context_settings=names)
    app.add_typer(group, name=name)
    return group


def _perform(function: Command, job: Job, own: Mapping[str, Any]) -> None:
    signal.signal(signal.SIGTERM, _terminate)
    with _exit_codes(job):
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
def _exit_codes(job: Job) -> Iterator[None]:
    """The one place that decides how a command ends."""
    try:
        yield
    except typer.Exit:
        raise
    except MedappsError as error:
        _fail(job, 2, str(error))
    except (KeyboardInterrupt, Interrupted) as error:
        number = getattr(error, "signal_number", int(signal.SIGINT))
        _fail(job, 128 + number, str(error) or "stopped")
    except MemoryError as error:
        _fail(job, 2, f"Out of memory: {error}. See `medapps doctor`.")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:
            _fail(job, 2, f"{error.filename or job.root} cannot be used: {error.strerror}.")
        if _FULL.search(str(error)):
            _fail(job, 2, f"{job.root} cannot be written: the disk is full.")
        _fail(job, 1, f"{type(error).__name__}: {error}\n{_ISSUES}")


def _fail(job: Job, code: int, message: str) -> None:
    if job.debug:
        typer.echo(masked(traceback.format_exc()), err=True)
    typer.echo(f"medapps {job.command}: {masked(message)}", err=True)
    if job.json:
        _echo_error(code, message)
    raise typer.Exit(code)


def _echo_error(code: int, message: str) -> None:
    typer.echo(json.dumps({"status": "error", "error": masked(message), "exit_code": code}))
