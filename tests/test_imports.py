"""The arrows between rooms, and what may be imported where."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import medapps

PACKAGE = Path(medapps.__file__).parent
FORBIDDEN = {
    "model": {"medapps.graph", "medapps.crop", "medapps.train", "medapps.baselines"},
    "graph": {"medapps.model", "medapps.train", "medapps.crop", "medapps.baselines", "torch"},
    "crop": {"medapps.train", "medapps.baselines", "medapps.evaluate", "torch"},
    "train": {"medapps.baselines", "medapps.label", "medapps.recommend"},
    "evaluate": {
        "medapps.train.loop",
        "medapps.train.step",
        "medapps.train.loss",
        "medapps.train.batches",
        "medapps.baselines",
        "medapps.label",
        "medapps.recommend",
    },
    "label": {"medapps.train", "medapps.baselines", "medapps.recommend"},
    "recommend": {"medapps.train", "medapps.baselines", "medapps.label"},
    "baselines": {"medapps.label", "medapps.recommend"},
    "text": {
        "medapps.graph",
        "medapps.model",
        "medapps.crop",
        "medapps.baselines",
        "medapps.label",
        "medapps.recommend",
    },
}
"""Which imports a room must not have; none of them may know the command line either."""
MLFLOW_USERS = {"serve/pyfunc.py"}
"""The file of logged models is run by MLflow itself."""


def imports(path: Path) -> set[str]:
    """Modules that a file imports anywhere outside `if TYPE_CHECKING:`."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found


@pytest.mark.parametrize("room", FORBIDDEN)
def test_arrows_between_rooms_point_down(room: str) -> None:
    for path in (PACKAGE / room).rglob("*.py"):
        for module in imports(path):
            for bad in FORBIDDEN[room] | {"medapps.cli", "medapps.stages", "typer"}:
                assert not (module + ".").startswith(bad + "."), f"{path.name} imports {module}"


def test_only_tracking_imports_mlflow() -> None:
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "tracking"
        and any((module + ".").startswith("mlflow.") for module in imports(path))
    }
    assert users <= MLFLOW_USERS


def test_only_its_command_and_its_stages_import_text() -> None:
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if any((module + ".").startswith("medapps.text.") for module in imports(path))
    }
    assert {user for user in users if not user.startswith("text/")} == {
        "cli/text.py",
        "stages/text.py",
    }


def loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(answer.stdout.split())


def test_help_needs_neither_torch_nor_mlflow_nor_polars() -> None:
    statement = (
        "import medapps.cli.main as m, contextlib, io\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    m.app(['--help'])"
    )
    assert not loaded_after(statement) & {"torch", "mlflow", "polars", "sklearn", "pydantic"}


def test_import_medapps_is_light_and_still_offers_its_names() -> None:
    assert not loaded_after("import medapps") & {"torch", "mlflow", "polars", "numpy"}
    for name in medapps.__all__:
        assert getattr(medapps, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        medapps.nonsense  # noqa: B018
