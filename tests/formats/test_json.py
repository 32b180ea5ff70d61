"""Numbers in JSON are rounded to the nearest float64, as Python's parser rounds them, and nothing else is one."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca.formats.json import count, loads, may_hold_booleans
from streampca.formats.packing import VectorError

NUMBERS = [
    "0", "0.0", "-0.0", "-0e0", "0e5", "-0E-5", "1e0", "1E5", "1e+05", "1e-05", "1e22", "1e23", "8.5e22", "0.1", "0.3",
    "123456789012345678", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
    "18446744073709551615", "18446744073709551616", "36893488147419103232", "9007199254740992", "9007199254740994",
    "0.000000000000000000000000000001234567890123456789", "9007199254740993", "9007199254740993.0",
    "-9007199254740995", "9007199254740993e3", "3.265991064905111e16", "4503599627370496.5",  # halfway
    "-1125899906842625.125", "0.12345678901234567890", "1e-400", "-1e-400", "5e-324", "-2e-324", "3e-324",
    "2.2250738585072014e-308", "2.2250738585072011e-308", "1.7976931348623157e308", "1.7976931348623158e308",
    "0e400000000", "18446744073709549569", "4503599627370496.499", "9007199254740992.9", "1.0000000000000002", "1e007",
]  # fmt: skip
REFUSED = [
    "1e400", "-1e400", "1.7976931348623159e308", "NaN", "-NaN", "Infinity", "-Infinity", "nan", "inf", "-", "+1",
    "--1", "01", "-01", "00", "1.", ".5", "-.5", "1.e5", "1e", "1e+", "1e+-5", "1e5.0", "1 2", "1_0", "0x10", "1f",
    "e5", "1,", ",1", "/", ":", "１", "1\0", "\f1", "1\v", "\u00a01", "1//", "1#", "'1'", "1]", "[1",
]  # fmt: skip


def check(number: str) -> None:
    expected = np.float64(json.loads(number))
    assert np.float64(loads(f"[{number}]".encode())[0]).tobytes() == expected.tobytes(), number


def test_numbers() -> None:
    for number in NUMBERS:
        check(number)


@given(words=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30), digits=st.integers(1, 25))
def test_any_float_with_any_number_of_digits(words: list[int], digits: int) -> None:
    for x in np.array(words, np.uint64).view(np.float64).tolist():
        for number in (f"{x:.{digits - 1}e}", repr(x)):
            if math.isfinite(float(number)):
                check(number)


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(VectorError, match="not JSON"):
        loads(f"[{text}]".encode())


@given(
    st.lists(st.sampled_from([b"[", b"[[", b"]", b"12", "é".encode()]), max_size=50).map(b"".join), st.integers(1, 9)
)
def test_count_counts_as_bytes_do(text: bytes, at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("streampca.formats.json._COUNTED_BYTES", at_once)
        assert count(text, b"[") == text.count(b"[")


@given(st.lists(st.sampled_from([b"t", b"f", b"true", b"false", b"tru", b" "]), max_size=50).map(b"".join))
def test_booleans_are_found_as_bytes_are(text: bytes) -> None:
    assert may_hold_booleans(text) is (b"true" in text or b"false" in text)
