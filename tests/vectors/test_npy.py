"""Arrays in .npy files of every layout, and invalid files."""

import io
from typing import Any

import numpy as np
import pytest

from streampca.vectors.npy import parse_array, parse_vector
from streampca.vectors.packing import VectorError


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def with_shape(shape: str, data: bytes) -> bytes:
    """A file with this shape in its header."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": (7777,)})
    header = buffer.getvalue().replace(b"(7777,)", shape.encode().ljust(7))
    return header + data


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<i2", ">u8", "f2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_array_of_real_numbers(dtype: str, order: Any) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype, order=order)
    found = parse_array(npy(array))
    assert found.dtype == array.dtype
    assert found.tolist() == array.tolist()
    assert np.frombuffer(parse_vector(npy(array[0]), 3)).tolist() == array[0].tolist()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x93NUMPY", npy(np.zeros(3))[:-1], npy(np.zeros(3)) + b"0", npy(np.zeros(3, complex)),
        npy(np.array(["a"])), with_shape("(-1,-2)", bytes(16)), with_shape("(-1,)", b""), with_shape("(-1,0)", b""),
    ],
)  # fmt: skip
def test_other_files_are_errors(data: bytes) -> None:
    with pytest.raises(VectorError):
        parse_array(data)
    with pytest.raises(VectorError):
        parse_vector(data, 3)


def test_a_vector_has_one_axis_of_the_given_length() -> None:
    with pytest.raises(VectorError, match="2 axes"):
        parse_vector(npy(np.zeros((1, 3))), 3)
    with pytest.raises(VectorError, match="3 numbers, not 4"):
        parse_vector(npy(np.zeros(3)), 4)
