"""The pages that describe the package follow the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import FrameType

import pytest

from medapps.train.config import MedConfig
from medapps.train.loop import arithmetic
from medapps.train.med import MedTask
from medapps.train.process_group import SINGLE
from medapps.train.session import Session
from tests.train.conftest import make_graph

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def test_the_picture_of_the_rooms_is_that_of_the_imports() -> None:
    command = [sys.executable, str(ROOT / "pipelines" / "architecture.py"), "--check"]
    done = subprocess.run(command, check=False)
    assert done.returncode == 0, "run python pipelines/architecture.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"`(medapps/[^`\s]*)`", page.read_text()))
    missing = [name for name in sorted(named) if not list(ROOT.glob(name.rstrip("/")))]
    assert not missing


def test_a_training_step_calls_the_files_that_its_page_lists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition("## One training step")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\d+\. `(medapps/[^`]*)`", section, re.MULTILINE))
    config = MedConfig(dims=(4, 12), batch=64, chunk=32, negatives=16, device="cpu", threads=1)
    called = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(ROOT / "medapps"):
            called.add(file.relative_to(ROOT).as_posix())

    with arithmetic(config):
        task = MedTask(make_graph(), config, Session(), SINGLE)
        task.update(task.loop.at)  # the first step also asks for what is computed once
        sys.setprofile(note)
        try:
            for task.loop.at.count in range(1, 18):  # one of them looks at the loss
                task.update(task.loop.at)
        finally:
            sys.setprofile(None)
    assert called == listed and len(listed) <= 12
