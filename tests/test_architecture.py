"""The pages that describe the package follow the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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
