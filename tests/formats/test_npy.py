""".npy: any real type and byte order; everything else is rejected."""

import numpy as np
import pytest

from tests.formats.structured import (
    assert_rejected,
    codec,
    header_of,
    npy,
    npy_of,
)


@pytest.mark.parametrize("dtype", [">f8", "<f4", ">f4", "<f2", "|i1", ">i8", "<u8"])
def test_npy_may_have_any_real_type_and_byte_order(dtype: str) -> None:
    assert codec("npy").decode([npy(np.array([1, 2, 3], dtype))] * 2).vectors.tolist() == [[1, 2, 3]] * 2


@pytest.mark.parametrize(
    ("value", "reason", "words"),
    [
        (b"", "undecodable", "not an .npy"),
        (b"[1,2,3]", "undecodable", "not an .npy"),
        (npy(np.arange(3.0))[:-1], "undecodable", "as long as"),
        (npy(np.arange(3.0)) + b"\0", "undecodable", "as long as"),
        (npy(np.arange(3.0))[:40], "undecodable", "not an .npy"),
        (npy(np.array([1, None, 2], object)), "undecodable", "of |O"),
        (npy(np.array([1j, 2, 3])), "undecodable", "of <c16"),
        (npy(np.array([True, False, True])), "undecodable", "of |b1"),
        (npy(np.zeros(3, [("x", "<f8")])), "undecodable", "of |V8"),
        (npy(np.zeros(3, np.longdouble)), "undecodable", "at most 8 bytes"),
        (npy(np.zeros((1, 3))), "wrong_length", "2 axes"),
        (npy(np.float64(1)), "wrong_length", "0 axes"),
        (npy(np.zeros(2)), "wrong_length", "2 numbers, not 3"),
        (npy_of(header_of("'<f8'", "(100000000000,)")), "wrong_length", "100000000000 numbers"),
        (npy_of(header_of("'<f8'", f"({10**30},)")), "undecodable", "not an .npy"),
        (npy_of(header_of("'<f8'", f"(0x{'f' * 9000},)")), "undecodable", "not an .npy"),
        (npy_of(header_of("'<f8'", "(-1,)")), "wrong_length", "-1 numbers"),
        (npy_of("(" * 5000), "undecodable", "not an .npy"),
        (npy_of("-" * 5000 + "1"), "undecodable", "not an .npy"),
        (npy_of("{[]: 1}"), "undecodable", "not an .npy"),
        (npy_of("{'descr': '<f8', 'fortran_order': False, 1: 2}"), "undecodable", "not an .npy"),
        (npy_of("x" * 60_000), "undecodable", "not an .npy"),
        (npy_of(header_of("'<f8'", "(3,)"), bytes(24), version=9), "undecodable", "not an .npy"),
    ],
    ids=range(23),
)  # fmt: skip
def test_invalid_npy_vectors_are_rejected(value: bytes, reason: str, words: str) -> None:
    assert_rejected(codec("npy").decode([value]), reason, words)
