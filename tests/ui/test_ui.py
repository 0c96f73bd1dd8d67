"""A browser on the MLflow UI of a finished study: it shows the numbers of `medapps compare`.

Runs where chromium, node and playwright-core are: `make ui-test` brings them.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

LIBRARY = Path(os.environ.get("MEDAPPS_PLAYWRIGHT", "missing"))
CHROMIUM = shutil.which("chromium")
MISSING = [
    name
    for name, there in (
        ("chromium", CHROMIUM),
        ("node", shutil.which("node")),
        ("playwright-core", (LIBRARY / "node_modules" / "playwright-core").is_dir()),
    )
    if not there
]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)}: see make ui-test"),
    pytest.mark.timeout(1200),
]
STUDY = """
study:
  name: browser
  data: [{synth: tiny}]
  methods: [med, dt, pca]
  tasks: [{task: label, dims: [8]}]
  repeats: 2
train: {dims: [4, 8, 16], epochs: 2, threads: 1}
label: {epochs: 3, controls: false}
"""


def medapps(*words: object) -> dict:
    command = [sys.executable, "-m", "medapps", *map(str, words), "--json", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The workspace of a finished study, and what the study printed."""
    root = tmp_path_factory.mktemp("ui")
    (root / "study.yaml").write_text(STUDY)
    return root, medapps("run", root / "study.yaml", "--workspace", root)


@pytest.fixture(scope="module")
def address(finished):
    """The UI, for as long as the tests of this file run."""
    root, _ = finished
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "medapps", "ui", "--workspace", str(root), "--port", str(port)]
    with (root / "ui.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield _answering(f"http://127.0.0.1:{port}", server, root / "ui.log")
        finally:
            server.terminate()
            server.wait(30)


def _answering(address: str, server: subprocess.Popen, log: Path) -> str:
    for _ in range(600):
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(address, timeout=5):
                return address
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.5)
    raise AssertionError(log.read_text())


def shown_metrics(page: str, runs: int) -> dict[str, list[float]]:
    """Metric to the values shown for each run: the page lists all names, then all values."""
    part = page.split("\nMetrics\n", 1)[1].split("\nArtifacts\n", 1)[0]
    words = part.splitlines()[1:]  # after "Show diff only"
    names = [word for word in words if not _is_number(word)]
    values = [float(word) for word in words if _is_number(word)]
    assert len(values) == runs * len(names), part
    return {name: values[i * runs : (i + 1) * runs] for i, name in enumerate(names)}


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def test_comparison_in_the_ui_shows_the_numbers_of_medapps_compare(finished, address, tmp_path):
    from mlflow.tracking import MlflowClient

    root, study = finished
    rows = medapps("compare", "--workspace", root, "--no-track")["rows"]
    store = MlflowClient(f"sqlite:///{root}/mlflow.db")
    experiment = store.get_experiment_by_name("synth-tiny").experiment_id
    runs = store.search_runs([experiment], "tags.task = 'label'")
    methods = [run.data.tags["method"] for run in runs]
    assert sorted(methods) == ["dt", "med", "pca"]
    picture = Path(os.environ.get("MEDAPPS_PICTURE", tmp_path / "comparison.png"))
    given = {
        "library": str(LIBRARY),
        "chromium": CHROMIUM,
        "address": address,
        "experiment": experiment,
        "runs": [run.info.run_id for run in runs],
        "parent": study["run_id"],
        "metric": "f1_macro",
        "described": "against med",
        "picture": str(picture),
        "timeout": 300_000,
    }
    script = Path(__file__).with_name("compare.mjs")
    done = subprocess.run(
        ["node", str(script), json.dumps(given)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    page = json.loads(done.stdout)
    shown = shown_metrics(page["comparison"], len(runs))
    compared = 0
    for row in rows:
        if row["metric"] in shown:
            value = shown[row["metric"]][methods.index(row["method"])]
            assert value == pytest.approx(row["value"], abs=0.00051), row  # three decimals
            compared += 1
    assert compared >= 9  # accuracy and two kinds of F1 of three methods at least
    best = max(row["value"] for row in rows if row["metric"] == "f1_macro")
    assert f"{best:.3f} [" in page["parent"] and "no difference shown" in page["parent"]
    assert page["errors"] == [] and page["outside"] == []
    assert picture.read_bytes().startswith(b"\x89PNG")
