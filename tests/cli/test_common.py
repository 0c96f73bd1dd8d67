"""How commands end and what they print, whatever they do."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from medapps.cli.common import Job, Result, command
from medapps.cli.main import app as medapps_app
from medapps.cli.tables import facts
from medapps.errors import Interrupted, MedappsError

app = typer.Typer(pretty_exceptions_enable=False)


@command("work", example="work --how well", group=app)
def work(job: Job, how: Annotated[str, typer.Option()] = "well") -> Result:
    """Do something."""
    if how == "wrong":
        raise MedappsError("The input is wrong.", fix="Use another one.")
    if how == "bug":
        raise ZeroDivisionError("oops")
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "terminate":
        raise Interrupted(signal_number=15)
    if how == "full":
        raise OSError(errno.ENOSPC, "No space left on device", "some/file")
    if how == "secret":
        raise MedappsError("https://me:hush-hush@host does not answer.")
    if how == "[/red]":
        job.say("said [/red]")
        return Result({}, ["shown [/red]", facts({"[/red]": "[bold]"})])
    job.say("a remark")
    return Result({"artifact": Path("x"), "how": how}, ["for people"])


@command("other", example="other", group=app)
def other(job: Job) -> Result:
    """A second command, so that the first needs its name."""
    job.settings()
    return Result({})


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout, result.stderr


def test_a_result_is_shown_to_people_and_remarks_go_to_standard_error() -> None:
    assert run("work") == (0, "for people\n", "a remark\n")


def test_json_is_exactly_one_object_with_the_common_keys() -> None:
    code, out, err = run("work", "--json", "--seed", "7")
    values = json.loads(out)
    assert code == 0
    assert err == "a remark\n"
    assert values["how"] == "well"
    assert (values["status"], values["seed"], values["artifact"]) == ("ok", 7, "x")
    assert values["run_id"] is None
    assert values["seconds"] >= 0


def test_quiet_says_nothing_but_the_result() -> None:
    assert run("work", "-q") == (0, "for people\n", "")


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("wrong", 2, "The input is wrong. Use another one."),
        ("bug", 1, "ZeroDivisionError: oops"),
        ("interrupt", 130, "stopped"),
        ("terminate", 143, "stopped"),
        ("full", 2, "some/file cannot be used: No space left on device."),
        ("secret", 2, "https://me:***@host does not answer."),
    ],
)
def test_every_end_has_its_exit_code_and_no_traceback(how: str, code: int, words: str) -> None:
    exit_code, out, err = run("work", "--how", how)
    assert (exit_code, out) == (code, "")
    assert err.startswith(f"medapps work: {words}")
    assert "Traceback" not in err
    exit_code, out, _ = run("work", "--how", how, "--json")
    assert json.loads(out)["exit_code"] == exit_code == code


def test_debug_shows_the_traceback() -> None:
    assert "Traceback" in run("work", "--how", "bug", "--debug")[2]


def test_an_unknown_option_ends_with_2() -> None:
    assert run("work", "--nonsense")[0] == 2


def test_a_typing_error_in_a_setting_ends_with_2_and_the_nearest_key() -> None:
    code, _, err = run("other", "--set", "train.epoch=3")
    assert code == 2
    assert "train.epochs" in err


def test_dump_config_prints_settings_that_run_again(tmp_path: Path) -> None:
    code, out, _ = run("other", "--set", "train.lr=1e-2", "--dump-config")
    assert code == 0
    file = tmp_path / "dump.yaml"
    file.write_text(out)
    assert run("other", "--config", str(file), "--dump-config")[1] == out
    assert "lr: 0.01" in out


def test_every_command_has_an_example_in_its_help() -> None:
    def commands(group: typer.Typer) -> list[typer.models.CommandInfo]:
        inner = [found for g in group.registered_groups for found in commands(g.typer_instance)]
        return group.registered_commands + inner

    found = commands(medapps_app)
    assert len(found) > 5
    for info in found:
        assert (info.epilog or "").startswith("Example: medapps "), info.name
        assert info.callback.__doc__, info.name


def test_the_module_is_the_same_program() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "medapps", "--version"], capture_output=True, text=True, check=True
    )
    import medapps

    assert answer.stdout == f"{medapps.__version__}\n"


def test_sigterm_ends_a_command_with_143() -> None:
    code = (
        "import time, typer\n"
        "from medapps.cli.common import Result, command\n"
        "app = typer.Typer()\n"
        "@command('a', example='a', group=app)\n"
        "def a(job):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(30)\n"
        "    return Result({})\n"
        "app()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 143


def test_names_in_brackets_are_printed_as_they_are() -> None:
    code, out, err = run("work", "--how", "[/red]")
    assert (code, err) == (0, "said [/red]\n")
    assert out.split() == ["shown", "[/red]", "[/red]", "[bold]"]


@pytest.mark.parametrize(
    "words",
    [
        ["rank", "--dim", "x"],
        ["nothing"],
        ["rank", "--nothing"],
        ["data", "nothing"],
        ["train"],
        [],
    ],
)
def test_a_refused_command_line_is_one_json_object_too(words: list[str]) -> None:
    result = CliRunner().invoke(medapps_app, [*words, "--json"])
    values = json.loads(result.stdout)
    assert (values["status"], values["exit_code"], result.exit_code) == ("error", 2, 2)
    assert values["error"]
    if words:
        assert CliRunner().invoke(medapps_app, words).stdout == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("place", ["medapps.cli.main", "mlflow.tracking", "sqlalchemy.event"])
def test_a_signal_while_anything_is_imported_ends_in_one_sentence(
    place: str, number: int, code: int, tmp_path: Path
) -> None:
    """The signal comes when the import of `place` begins."""
    program = (
        "import os, runpy, sys\n"
        "class Raise:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {place!r}:\n"
        f"            sys.meta_path.remove(self); os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Raise())\n"
        f"sys.argv = ['medapps', 'doctor', '--workspace', {str(tmp_path)!r}]\n"
        "runpy.run_module('medapps', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == code
    assert done.stderr.strip().endswith("stopped") and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_inside_a_call_of_mlflow_is_not_taken_for_an_error(
    number: int, code: int, tmp_path: Path
) -> None:
    program = (
        "import os, runpy, sys, sqlalchemy.orm\n"
        "whole = sqlalchemy.orm.Session.commit\n"
        "def commit(self):\n"
        "    if sys._getframe(1).f_code.co_filename.endswith('mlflow/store/db/utils.py'):\n"
        "        sqlalchemy.orm.Session.commit = whole\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "    whole(self)\n"
        "sqlalchemy.orm.Session.commit = commit\n"
        f"sys.argv = ['medapps', 'doctor', '--json', '--workspace', {str(tmp_path)!r}]\n"
        "runpy.run_module('medapps', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert done.stderr == "medapps doctor: stopped\n"
    assert json.loads(done.stdout)["exit_code"] == code


def test_a_workspace_with_a_file_in_the_place_of_a_folder_ends_with_2(tmp_path: Path) -> None:
    (tmp_path / "graphs").touch()
    result = CliRunner().invoke(medapps_app, ["rank", "--workspace", str(tmp_path)])
    assert result.exit_code == 2
    assert "graphs is a file, not a folder" in result.stderr


@pytest.mark.parametrize("late", ["atexit.register", "threading._register_atexit"])
def test_a_signal_after_the_end_is_no_traceback(late: str) -> None:
    code = f"""
import atexit, os, signal, sys, threading
from medapps.__main__ import main
{late}(lambda: os.kill(os.getpid(), signal.SIGINT))
sys.argv = ["medapps", "--version"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode in (0, 130) and done.stderr == "", done


def test_the_shell_can_complete_commands() -> None:
    found = CliRunner().invoke(medapps_app, ["--help"])
    assert "--install-completion" in found.stdout
