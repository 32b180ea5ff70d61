"""Numbers in JSON are rounded to the nearest float64, as Python's parser rounds them, and nothing else is one."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca.formats.json import loads, may_hold_booleans
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
NUMBER = r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,24})?([eE][+-]?[0-9]{1,3})?"
NEARLY = st.text("0123456789-+.eExf_/#N \f\v\0\u00a0１", max_size=5) | st.sampled_from(["NaN", "-Infinity", "1", "nan"])


def check(text: str) -> None:
    """Numbers and commas as Python's parser reads them, or refused where it refuses them or overflows."""
    try:
        expected = np.array(json.loads(f"[{text}]"), np.float64)
    except ValueError:
        expected = np.array([np.nan])
    if np.isfinite(expected).all():
        assert np.array(loads(f"[{text}]".encode()), np.float64).tobytes() == expected.tobytes(), text
    else:
        with pytest.raises(VectorError, match="not JSON"):
            loads(f"[{text}]".encode())


def test_numbers() -> None:
    for number in NUMBERS:
        check(number)


@given(st.lists(st.from_regex(NUMBER, fullmatch=True) | st.floats().map(repr) | NEARLY, min_size=1, max_size=3))
def test_what_is_a_number_and_what_is_none(entries: list[str]) -> None:
    check(",".join(entries))


@given(st.lists(st.sampled_from([b"t", b"f", b"true", b"false", b"tru", b" "]), max_size=50).map(b"".join))
def test_booleans_are_found_as_bytes_are(text: bytes) -> None:
    assert may_hold_booleans(text) is (b"true" in text or b"false" in text)
