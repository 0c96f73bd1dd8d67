"""A device has NumPy and polars: loading, looking up, scoring and searching need nothing else."""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import medapps
from medapps.crop.crop import Crop
from medapps.crop.export import Export, export_crop

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
import medapps
from medapps.crop.similar import similar
folder = Path(sys.argv[1])
expected = np.load(folder / "expected.npy")
for form in ("safetensors", "npz", "parquet"):
    crop = medapps.load_crop(folder / form)
    vectors, known = crop.vectors(["u00001é", "nobody", "u00003é"])
    assert np.array_equal(vectors, expected) and known.tolist() == [True, False, True]
    assert len(crop.score(["u00001é"], ["r0"], ["u00003é"])) == 1
    assert len(similar(crop, ["u00001é"], 5)) == 5
    crop.save(folder / f"{form}-again")
print(sorted({name.partition(".")[0] for name in sys.modules}))
"""
HEAVY = (
    "torch",
    "pydantic",
    "mlflow",
    "yaml",
    "sklearn",
    "safetensors",
    "pandas",
    "scipy",
    "typer",
)


@pytest.fixture
def crops(crop: Crop, tmp_path: Path) -> Path:
    for form in ("safetensors", "npz", "parquet"):
        export_crop(crop, tmp_path / form, Export(form=form))
    np.save(tmp_path / "expected.npy", crop.vectors(["u00001é", "nobody", "u00003é"])[0])
    return tmp_path


def test_a_virtual_environment_with_numpy_and_polars_is_enough(crops: Path, tmp_path: Path) -> None:
    """A real environment without pip; the two packages are linked into it, without a network."""
    home = tmp_path / "bare"
    venv.EnvBuilder(with_pip=False, symlinks=True).create(home)
    packages = next(home.glob("lib/python*/site-packages"))
    for package in ("numpy", "polars", "_polars_runtime_32"):
        spec = find_spec(package)
        assert spec is not None and spec.origin is not None
        folder = Path(spec.origin).parent
        (packages / package).symlink_to(folder)
        for beside in folder.parent.glob(f"{package}*"):  # numpy.libs and the metadata
            if not (packages / beside.name).exists():
                (packages / beside.name).symlink_to(beside)
    (packages / "medapps").symlink_to(Path(medapps.__file__).parent)
    python = home / "bin" / "python"
    run = [str(python), "-I", "-W", "error", "-c"]
    absent = subprocess.run([*run, "import torch"], capture_output=True, text=True, check=False)
    assert "No module named 'torch'" in absent.stderr
    done = subprocess.run(
        [*run, PROGRAM, str(crops)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert not set(HEAVY) & set(eval(done.stdout))


def test_the_crop_room_never_imports_heavy_packages() -> None:
    """Even where they are installed: all modules but those of configuration."""
    room = Path(medapps.__file__).parent / "crop"
    excepted = {"tiers", "select", "__init__"}
    names = sorted(path.stem for path in room.glob("*.py") if path.stem not in excepted)
    code = f"import sys\nfor n in {names!r}: __import__('medapps.crop.' + n)\n"
    code += f"print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
