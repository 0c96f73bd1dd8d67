"""float16 and int8 stay within the stated bounds: coordinates and scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from medapps.crop.export import Export, export_crop
from medapps.crop.quantize import DTYPES, dequantize, quantize
from medapps.errors import MedappsError
from tests.crop.conftest import make_crop
from tests.score_bounds import coordinate_error, score_error

ROWS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(0, 6), st.integers(1, 9)),
    elements=st.floats(-60000, 60000, width=32),
)


@given(ROWS)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_no_coordinate_moves_further_than_stated(rows: np.ndarray) -> None:
    for dtype in DTYPES:
        vectors, scale = quantize(rows, dtype)
        assert vectors.dtype == dtype and (scale is None) == (dtype != "int8")
        moved = np.abs(dequantize(vectors, scale).astype(float) - rows).max(1, initial=0)
        assert (moved <= coordinate_error(rows, dtype)).all()


def test_the_bounds_are_tight_enough_to_mean_something() -> None:
    rows = np.random.default_rng(0).normal(size=(2000, 100)).astype(np.float32)
    for dtype in ("float16", "int8"):
        moved = np.abs(dequantize(*quantize(rows, dtype)) - rows).max(1)
        assert (moved > coordinate_error(rows, dtype) / 4).mean() > 0.9


def test_int8_uses_all_steps_and_keeps_zero_rows() -> None:
    rows = np.array([[0, 0], [1e-44, 0], [127, -63.4], [-3e38, 3e38]], np.float32)
    steps, scale = quantize(rows, "int8")
    assert steps.tolist() == [[0, 0], [0, 0], [127, -63], [-127, 127]]
    assert scale is not None and scale[0] == 0 and scale[2] == 1


def test_float16_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(MedappsError, match=r"exceed the range of float16.*--dtype float32"):
        quantize(np.full((2, 2), 1e5, np.float32), "float16")


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("dim", [10, 100])
def test_scores_stay_within_the_stated_bound(tmp_path: Path, dtype: str, dim: int) -> None:
    crop = make_crop(n=500, dim=dim)
    small = export_crop(crop, tmp_path / "a", Export(dtype=dtype))
    rng = np.random.default_rng(2)
    h, t = rng.integers(0, 500, (2, 20_000))
    r = rng.integers(0, 4, 20_000)
    assert crop.relation_ids is not None and crop.relations is not None
    triple = (crop.entity_ids.names(h), crop.relation_ids.names(r), crop.entity_ids.names(t))
    moved = np.abs(small.score(*triple) - crop.score(*triple))
    bound = score_error(crop.rows(h), crop.relations[r], crop.rows(t), crop.spec, dtype)
    assert (moved <= bound).all()
    assert moved.max() > bound.max() / 100  # not a bound that everything passes
