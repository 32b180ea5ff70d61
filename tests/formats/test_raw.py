"""Raw numbers: any real type of NumPy of at most 8 bytes, little-endian unless it says otherwise."""

import numpy as np
import pytest

from streampca.errors import InputError
from streampca.formats import writer_of
from tests.errors import refusal
from tests.formats.structured import assert_rejected, codec

TYPES = ["float16", "float32", "float64", "f8", "<f4", ">f4", ">f8", "int8", "uint8", "int16", ">u2", ">i4", "uint32",
         "int64", ">u8"]  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_is_written_and_read_exactly(kind: str) -> None:
    rows = np.array([[1.0, 2.0, 100.0], [0.0, 3.0, 127.0]])
    values = writer_of(kind).write({"": rows})
    order = ">" if kind[0] == ">" else "<"
    assert values == [row.astype(np.dtype(kind).newbyteorder(order)).tobytes() for row in rows]
    decoded = codec(kind).decode(values)
    assert decoded.vectors.tolist() == rows.tolist()
    assert decoded.vectors.dtype.isnative
    size = np.dtype(kind).itemsize
    assert_rejected(codec(kind).decode([bytes(3 * size + 1)]), "wrong_length", f"are not 3 numbers of {size} bytes")


def test_the_largest_integers_are_the_nearest_floats() -> None:
    values = [np.array(row, "<u8").tobytes() for row in ([2**64 - 1, 2**53 + 1, 0], [1, 2, 3])]
    assert codec("uint64").decode(values).vectors.tolist() == [[2.0**64, 2.0**53, 0.0], [1.0, 2.0, 3.0]]
    overflowing = codec("int64", largest_value=1e15).decode([np.full(3, -(2**63), "<i8").tobytes()])
    assert_rejected(overflowing, "too_large", "entry 0 is -9.22337e+18")


@pytest.mark.parametrize(("kind", "number"), [("int16", 1.5), ("uint8", -1.0), ("uint8", 256.0), ("int64", np.nan)])
def test_a_number_that_an_integer_type_does_not_hold_is_refused(kind: str, number: float) -> None:
    text = refusal(InputError, lambda: writer_of(kind).write({"": np.array([[0.0, number]])}))
    assert text == f"{number:g} is no {kind}"
