"""A short form of `make faults`, and where every kind of loss or wrong result is tested by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import harness

TESTS = Path(__file__).parents[1]
NAMED = {
    "A --force deletes only what medapps wrote": (
        "crop/test_cli.py",
        "test_force_replaces_no_data_set_and_no_foreign_project",
    ),
    "B --out replaces no input, and nothing unasked": (
        "cli/test_task_commands.py",
        "test_an_output_is_no_input_and_replaces_nothing_unasked",
    ),
    "C a moved workspace writes into its new place": (
        "tracking/test_stores.py",
        "test_a_moved_or_copied_workspace_keeps_its_files_with_it",
    ),
    "D a tracking server that dies": (
        "tracking/test_runs.py",
        "test_work_goes_on_and_keeps_its_numbers_when_the_server_dies",
    ),
    "E NaN never ranks first": (
        "train/test_diverged.py",
        "test_a_table_without_numbers_has_the_worst_metrics",
    ),
    "F paths are no patterns": (
        "crop/test_bad_input.py",
        "test_a_folder_is_taken_by_its_very_name",
    ),
    "G files that no manifest lists": (
        "crop/test_bad_input.py",
        "test_a_file_that_was_added_to_a_crop_is_not_read",
    ),
    "H hidden folders do not count": ("crop/test_cli.py", "test_hidden_folders_are_no_results"),
    "I all of a manifest is sealed": (
        "store/test_reading.py",
        "test_nothing_that_a_manifest_states_can_be_edited",
    ),
    "J a killed registration": (
        "crop/test_cli.py",
        "test_a_killed_registration_is_made_up_for",
    ),
    "K label columns of any name": (
        "label/test_label.py",
        "test_a_label_keeps_its_values_whatever_its_column_is_called",
    ),
    "L bad ratings are dropped when asked": (
        "graph/test_core.py",
        "test_bad_ratings_of_a_file_are_dropped_when_asked",
    ),
    "L a split that is not asked for is not read": (
        "graph/test_core.py",
        "test_a_split_column_that_is_not_asked_for_is_not_read",
    ),
    "M seeds do not wrap around": (
        "cli/test_settings.py",
        "test_a_seed_that_would_wrap_around_is_refused",
    ),
    "N a damaged faiss index": ("crop/test_similar.py", "test_a_damaged_index_is_built_again"),
    "O safetensors as strict as the library": (
        "test_arrays.py",
        "test_what_the_library_refuses_is_refused",
    ),
}


@pytest.mark.parametrize("what", NAMED)
def test_every_known_loss_has_a_test_of_its_own(what: str) -> None:
    file, name = NAMED[what]
    assert f"def {name}(" in (TESTS / file).read_text()


def test_a_fault_that_does_harm_is_counted_as_failed(tmp_path: Path) -> None:
    assert "exit code 1" in harness.complaint(harness.End(1, "KeyError: 'x'", 0.0))
    assert "Traceback" in harness.complaint(harness.End(2, "Traceback (most recent call last)", 0))
    assert harness.complaint(harness.End(143, "medapps train: stopped", 0.0)) == ""
    (tmp_path / "ws" / "crops" / "cut").mkdir(parents=True)
    assert "half-written" in harness.half_written(tmp_path)


@pytest.mark.slow
def test_a_dozen_of_every_fault_does_no_harm() -> None:
    # a process of its own: forked children need a parent whose libraries have no threads yet
    numbers = {"kills": 6, "signals": 6, "disk": 6, "writers": 2, "inputs": 24, "flips": 24}
    words = [word for name, n in numbers.items() for word in (f"--{name}", str(n))]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", "--cheap", "--json", "--seconds", "20", *words],
        cwd=TESTS.parent,
        env=os.environ | {"PYTHONPATH": str(TESTS.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout)
    assert all(count["tried"] for count in counts.values()), counts
