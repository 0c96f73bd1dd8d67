"""Our array files are safetensors files: the library reads ours and we read the library's."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from medapps.arrays import Blocks, Hole, fill, open_arrays, write_arrays
from medapps.errors import MedappsError

DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]
ARRAYS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5).filter(
        lambda name: name != "__metadata__"
    ),
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: hnp.arrays(
            dtype, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
        )
    ),
    max_size=4,
)


@given(arrays=ARRAYS)
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_library_reads_what_we_write_and_we_read_it_too(
    arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    write_arrays(tmp_path / "a", arrays)
    theirs = safetensors.numpy.load_file(tmp_path / "a")
    safetensors.numpy.save_file(arrays, tmp_path / "b")
    for name, array in arrays.items():
        for found in (
            theirs[name],
            open_arrays(tmp_path / "a")[name],
            open_arrays(tmp_path / "b")[name],
        ):
            assert found.dtype == array.dtype and found.shape == array.shape
            assert found.tobytes() == array.tobytes()


def test_blocks_are_written_one_after_another(tmp_path: Path) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(8, 3)
    pieces = (whole[i : i + 3] for i in range(0, 8, 3))
    write_arrays(tmp_path / "a", {"x": Blocks((8, 3), "float32", pieces), "y": whole[:1]})
    assert np.array_equal(safetensors.numpy.load_file(tmp_path / "a")["x"], whole)


def test_bfloat16_travels_as_bit_patterns(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    bits = (np.array([1.0, -2.5, 3e38], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    write_arrays(tmp_path / "a", {"x": Blocks((3,), "uint16", [bits], "BF16")})
    read = load_file(tmp_path / "a")["x"]
    assert read.dtype == torch.bfloat16
    assert np.array_equal(open_arrays(tmp_path / "a")["x"], bits)
    assert read[:2].tolist() == [1.0, -2.5]


def test_arrays_are_mapped_and_read_only(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a", {"x": np.zeros(3)})
    array = open_arrays(tmp_path / "a")["x"]
    assert isinstance(array, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda b: b[:4],
        lambda b: b[:-1],
        lambda b: b"\xff" * 8 + b[8:],
        lambda b: b.replace(b"F64", b"F99"),
        lambda b: b.replace(b"[3]", b"[9]"),
        lambda b: b.replace(b"{", b"[", 1),
        lambda b: b.replace(b"[3]", b"[-"),
    ],
)
def test_a_damaged_file_is_refused_with_a_sentence(spoil, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "x.safetensors"
    write_arrays(path, {"x": np.zeros(3)})
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(MedappsError, match=r"x\.safetensors is not a readable array file"):
        open_arrays(path)


def test_a_single_number_is_an_array_too(tmp_path):
    write_arrays(tmp_path / "one.safetensors", {"x": np.float32(3.5).reshape(())})
    assert open_arrays(tmp_path / "one.safetensors")["x"] == 3.5


def test_holes_are_filled_by_whoever_has_the_rows(tmp_path):
    """Several processes put their rows into one file; arrays after the hole stay in place."""
    path, rows = tmp_path / "shared.safetensors", np.arange(12, dtype=np.float32).reshape(6, 2)
    last = np.array([7, 8], np.int32)
    write_arrays(path, {"hole": Hole((6, 2), "float32"), "last": last}, {"who": "ranks"})
    for first in (4, 0, 2):
        fill(path, "hole", first, rows[first : first + 2])
    got = open_arrays(path)
    assert np.array_equal(got["hole"], rows) and np.array_equal(got["last"], last)
    write_arrays(tmp_path / "plain.safetensors", {"hole": rows, "last": last}, {"who": "ranks"})
    assert path.read_bytes() == (tmp_path / "plain.safetensors").read_bytes()


def test_the_digest_of_what_was_written_is_that_of_the_file(tmp_path: Path) -> None:
    blocks = Blocks((5, 2), "float32", [np.ones((2, 2)), np.zeros((3, 2))])
    arrays = {"a": np.arange(12).reshape(3, 4)[:, ::2], "b": blocks, "c": np.empty((0, 3))}
    digest = write_arrays(tmp_path / "x.safetensors", arrays)
    assert digest == hashlib.sha256((tmp_path / "x.safetensors").read_bytes()).hexdigest()


def pack(header: object, data: bytes) -> bytes:
    """A safetensors file of any header, given as text or as a value."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(begin: object, end: object, shape: object = (2,), dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def read_by_library(path: Path) -> dict[str, np.ndarray] | None:
    try:
        return safetensors.numpy.load_file(path)
    except (safetensors.SafetensorError, ValueError):
        return None


ONE = json.dumps(entry(0, 8))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(pack({"a": entry(0, 8), "b": entry(0, 8)}, b"." * 8), id="overlap"),
        pytest.param(pack({"a": entry(0, 8), "b": entry(4, 12)}, b"." * 12), id="half overlap"),
        pytest.param(pack({"a": entry(0, 8), "b": entry(12, 20)}, b"." * 20), id="hole"),
        pytest.param(pack({"a": entry(4, 12)}, b"." * 12), id="hole before"),
        pytest.param(pack({"a": entry(0, 8)}, b"." * 9), id="trailing byte"),
        pytest.param(pack({}, b"."), id="bytes of no array"),
        pytest.param(pack(f'{{"a":{ONE},"a":{json.dumps(entry(8, 16))}}}', b"." * 16), id="twice"),
        pytest.param(pack({"a": entry(-8, 0)}, b"." * 8), id="negative"),
        pytest.param(pack({"a": entry(0.0, 8.0)}, b"." * 8), id="fractions"),
        pytest.param(pack({"a": entry(False, False, (0,))}, b""), id="truth values"),
        pytest.param(pack({"a": entry(0, 8, (-1, -2))}, b"." * 8), id="negative shape"),
        pytest.param(pack({"a": entry(0, 8), "e": entry(4, 4, (0,))}, b"." * 8), id="inside"),
        pytest.param(pack({"__metadata__": {"a": 1}}, b""), id="metadata of numbers"),
        pytest.param(pack({"__metadata__": []}, b""), id="metadata of no object"),
        pytest.param(pack("[]", b""), id="list"),
        pytest.param(pack("[" * 100_000, b""), id="deep"),
    ],
)
def test_what_the_library_refuses_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    assert read_by_library(path) is None
    with pytest.raises(MedappsError, match=r"x\.safetensors is not a readable array file"):
        open_arrays(path)


NUMBERS = st.sampled_from([-4, 0, 4, 8, 12, 16])
ENTRIES = st.builds(entry, NUMBERS, NUMBERS, st.lists(st.integers(0, 3), max_size=2))


@given(
    header=st.dictionaries(st.sampled_from("abc"), ENTRIES), size=st.sampled_from([0, 8, 12, 16])
)
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_header_is_read_as_the_library_reads_it(
    header: dict, size: int, tmp_path: Path
) -> None:
    path = tmp_path / "x"
    path.write_bytes(pack(header, bytes(range(size))))
    theirs = read_by_library(path)
    if theirs is None:
        with pytest.raises(MedappsError):
            open_arrays(path)
        return
    ours = open_arrays(path)
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert ours[name].shape == array.shape and ours[name].tobytes() == array.tobytes()


def test_a_missing_array_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MedappsError, match=r"gone\.safetensors is not a readable array file"):
        open_arrays(tmp_path / "gone.safetensors")
