"""Arrays of numbers are read by code of ours: never but as orjson would, to the bit, and ordinary ones always."""

import json
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streampca.stream.formats import arrays
from streampca.stream.formats.arrays import read_arrays


def by_orjson(text: bytes, dimensions: int) -> bytes | None:
    """The numbers in memory; None where a text is no array of so many of them."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if type(found) is not list or len(found) != dimensions or not {type(entry) for entry in found} <= {int, float}:
        return None
    return struct.pack(f"{dimensions}d", *found)


def check(texts: Sequence[bytes], dimensions: int, *, taken: bool | None = None) -> None:
    """What is taken is as orjson has it; `taken`: whether all is, or nothing."""
    for text, row in zip(texts, read_arrays(texts, dimensions), strict=True):
        if row is not None:
            assert bytes(row) == by_orjson(text, dimensions), text
        if taken is not None:
            assert (row is not None) is taken, text


def array_of(numbers: Sequence[str]) -> bytes:
    return f"[{','.join(numbers)}]".encode()


ordinary = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False, min_value=-1e300, max_value=1e300),
    st.floats(-1, 1, width=32).filter(lambda x: x == 0 or abs(x) > 1e-30),
    st.integers(-(2**53), 2**53),
    st.decimals(-1000, 1000, places=3).map(float),
).filter(lambda x: x == 0 or abs(x) > 1e-300)


@settings(deadline=None)
@given(rows=st.lists(st.lists(ordinary, min_size=3, max_size=3), min_size=1, max_size=4), layout=st.integers(0, 3))
def test_ordinary_arrays_are_taken(rows: list[list[float]], layout: int) -> None:
    write = [
        lambda row: json.dumps(row).encode(),
        orjson.dumps,
        lambda row: json.dumps(row, indent="\t").encode() + b"\r\n",
        lambda row: array_of([f"{float(entry):.16e}" for entry in row]).replace(b",", b" ,\n"),
    ][layout]
    check([write(row) for row in rows], 3, taken=True)


@settings(deadline=None, max_examples=300)
@given(words=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30), digits=st.integers(1, 25))
def test_any_float_with_any_number_of_digits(words: list[int], digits: int) -> None:
    numbers = [x for x in np.array(words, np.uint64).view(np.float64).tolist() if math.isfinite(x)]
    for written in ([f"{x:.{digits - 1}e}" for x in numbers], [repr(x) for x in numbers]):
        check([array_of([text]) for text in written], 1)


@settings(deadline=None, max_examples=300)
@given(
    sign=st.sampled_from(["", "-"]),
    before=st.from_regex(r"\A(0|[1-9][0-9]{0,22})\Z"),
    behind=st.from_regex(r"\A(|\.0{0,24}[0-9]{1,22})\Z"),
    power=st.from_regex(r"\A(|[eE][+-]?[0-9]{1,3})\Z"),
)
def test_any_decimal(sign: str, before: str, behind: str, power: str) -> None:
    check([f"[{sign}{before}{behind}{power}]".encode()], 1)


@settings(deadline=None, max_examples=300)
@given(fraction=st.integers(2**52, 2**53 - 1), exponent=st.integers(-60, 60), by=st.integers(-2, 2))
def test_numbers_halfway_between_two_floats(fraction: int, exponent: int, by: int) -> None:
    """Written out as far as there is room, and a little more or less: what no shorter product can tell."""
    halves = 2 * fraction + 1
    value = halves << exponent if exponent >= 0 else None
    digits = str(value) if value is not None else str(halves * 5**-exponent)  # times 10^exponent
    shown, power = digits[:19], (len(digits) - 19 if len(digits) > 19 else 0) + min(exponent, 0)
    check([f"[{int(shown) + by}e{power}]".encode(), f"[{int(shown) + by}]".encode()], 1)


LEFT = [
    "9007199254740993.0", "4503599627370496.5", "-1125899906842625.125",  # halves of which so much is not kept
    "36893488147419103232",
    "18446744073709551616", "10000000000000000000", "0.12345678901234567890", "1e400", "-1e400", "1e308000", "1e-400",
    "5e-324", "2.2250738585072014e-308", "1.7976931348623157e308", "1e999999999999", "0e400000000",
    "true", "false", "null", '"1"', "[1]", "[]", "{}", "NaN", "-NaN", "Infinity", "-Infinity", "nan", "inf",
    "", "-", "+1", "--1", "01", "-01", "00", "1.", ".5", "-.5", "1.e5", "1e", "1e+", "1e+-5", "1e5.0", "1 2", "1_0",
    "0x10", "1f", "1d", "e5", "1,", ",1", "/", ":", "１", "1\0", "\f1", "1\v", "\u00a01", "1//", "1#", "'1'",
]  # fmt: skip


@pytest.mark.parametrize("entry", LEFT)
@pytest.mark.parametrize("around", [("", ""), ("0.5,", ""), ("", ",0.5"), (" 1 , ", " , 2 ")])
def test_entries_that_are_left_to_orjson(entry: str, around: tuple[str, str]) -> None:
    text = f"[{around[0]}{entry}{around[1]}]".encode()
    check([b"[7]", text, b"[7]"], 1 + text.count(b","))
    assert read_arrays([text], 1 + text.count(b",")) == [None]


@pytest.mark.parametrize(
    "text",
    [
        b"", b" ", b"[", b"]", b"[]", b"[ ]", b"][", b"[1", b"1]", b"1", b"[1]]", b"[[1]]", b"[[1]", b"[1],", b"[1]\0",
        b"[1] 2", b"[1][2]", b"[1]x", b"x[1]", b"\xef\xbb\xbf[1]", b"\xff[1]", b"[1]\xff", b"[1\xff]", b"(1)", b"{1}",
        b"[1,2]", b"[1,]", b"[,1]", b"[1;]", b"\xa0[1]", b"\x0b[1]", b"[1]\x0c", b'"[1]"', b"[1}", b"[1 ] ]", b"null",
        b"[" * 2000 + b"1" + b"]" * 2000, b"[\x001]", "[1]".encode("utf-16"), b"// \n[1]", b"[1] // one",
    ],
)  # fmt: skip
def test_texts_that_are_left_to_orjson(text: bytes) -> None:
    check([text], 1, taken=False)
    check([b"[1]", text, b"[1]"], 1)


@pytest.mark.parametrize(
    "entry",
    [
        "0", "-0", "0.0", "-0.0", "-0e0", "0e5", "-0E-5", "0.000", "1", "-1", "1e0", "1E5", "1e+05", "1e-05", "1e22",
        "1e23", "8.5e22", "0.1", "0.3", "123456789012345678", "9223372036854775808", "9999999999999999999",
        "9007199254740992", "9007199254740994", "1e-300", "1e300", "0.000000000000000000000000000001234567890123456789",
        "9007199254740993", "-9007199254740995", "9007199254740993e3", "3.265991064905111e16",  # halves
        "1.5", "2.5", "4503599627370496.499", "9007199254740992.9", "0e300", "1.0000000000000002",
        "100000000", "12345678", "0.12345678", "0.1234567812345678", "1.00000000", "99999999.99999999", "1e007",
    ],
)  # fmt: skip
def test_entries_that_are_taken(entry: str) -> None:
    assert read_arrays([f"[{entry}]".encode()], 1) == [by_orjson(f"[{entry}]".encode(), 1)]
    assert read_arrays([f"\n[ {entry}\t,1\r] ".encode()], 2) == [by_orjson(f"[{entry},1]".encode(), 2)]


pieces = st.sampled_from(
    [*"[],0191-.eE+ \n\t\r", *'"{}:\0\x7fé/;', "12345678", "0.5", "e-5", "true", "null", "NaN", "[1,2]", "[-0]"]
)


@settings(deadline=None, max_examples=500)
@given(texts=st.lists(st.lists(pieces, max_size=8), min_size=1, max_size=6), wrapped=st.booleans())
@example(texts=[["1"], ["1"]], wrapped=False)
def test_anything_like_json_one_behind_the_other(texts: list[list[str]], wrapped: bool) -> None:
    values = [("[" + "".join(text) + "]" if wrapped else "".join(text)).encode() for text in texts]
    for dimensions in (1, 2, 3):
        check(values, dimensions)
        assert read_arrays(values, dimensions) == [read_arrays([value], dimensions)[0] for value in values]


@settings(deadline=None, max_examples=200)
@given(texts=st.lists(st.binary(max_size=12), min_size=1, max_size=4))
def test_any_bytes(texts: list[bytes]) -> None:
    check(texts, 1)
    check([b"[1" + text + b"]" for text in texts], 1)


@pytest.mark.parametrize("length", range(1, 41))
def test_numbers_of_all_lengths(length: int) -> None:
    digits = ("1234567890" * 4)[:length]
    check([f"[{text}]".encode() for text in (digits, f"0.{digits}", f"{digits}.5", f"{digits}e-9")], 1)
    if length <= 17:
        check([f"[{text}]".encode() for text in (digits, f"0.{digits}", f"-{digits}.5")], 1, taken=True)


def test_many_more_than_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_AT_ONCE", 20)
    texts = [orjson.dumps([i, -i, i / 7]) if i % 5 else b"[1,2]" for i in range(100)]
    found = read_arrays(texts, 3)
    assert found == [by_orjson(text, 3) for text in texts]
    assert [i for i, row in enumerate(found) if row is None] == list(range(0, 100, 5))
    assert read_arrays(texts, 2) == [by_orjson(text, 2) for text in texts]
    assert read_arrays([], 3) == []


def test_random_numbers_as_producers_write_them() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 784))
    for table in (X, X.astype(np.float32), np.round(X, 3), rng.integers(0, 256, X.shape), 10.0 ** (20 * X)):
        rows: list[Any] = [orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) for row in table]
        check(rows, 784, taken=True)
