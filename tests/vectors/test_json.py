"""simdjson returns the same bits as orjson, and parses all ordinary texts."""

import importlib
import json
import math
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streampca.stream.codec import Codec
from streampca.vectors.json import JsonVectorParser, SimdjsonParser
from streampca.vectors.packing import VectorError

if sys.version_info >= (3, 14):
    pytest.skip("the extra has no simdjson for this Python", allow_module_level=True)
simdjson = importlib.import_module("simdjson")
thorough = settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=[name for name, _ in simdjson.Parser().get_implementations()])
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each of simdjson's implementations; by default the processor selects one."""
    parser = simdjson.Parser()
    default = parser.implementation[0]
    parser.implementation = request.param
    parsers.cache_clear()
    yield
    parser.implementation = default
    parsers.cache_clear()


@cache
def parsers(dimensions: int, field: str) -> tuple[SimdjsonParser, JsonVectorParser, JsonVectorParser]:
    """simdjson, a parser that tries it first, and a parser without it; cached, so that each parses many texts."""
    combined, orjson_only = JsonVectorParser(dimensions, field), JsonVectorParser(dimensions, field)
    orjson_only._simdjson = None
    assert combined._simdjson is not None
    return combined._simdjson, combined, orjson_only


def outcome(parser: JsonVectorParser, text: bytes) -> bytes | tuple[str, str]:
    try:
        return bytes(parser.parse(text))
    except VectorError as error:
        return error.reason, str(error)


def check(text: bytes, dimensions: int, field: str = "", *, accepted: bool | None = None) -> None:
    """The numbers, or the error, are the same with and without simdjson; `accepted`: whether simdjson parses it."""
    simdjson_only, combined, orjson_only = parsers(dimensions, field)
    expected, numbers = outcome(orjson_only, text), simdjson_only.parse(text)
    assert outcome(combined, text) == expected, text
    if numbers is not None:
        assert bytes(numbers) == expected, text
    if accepted is not None:
        assert (numbers is not None) is accepted, text


def array_of(numbers: Sequence[str]) -> bytes:
    return f"[{','.join(numbers)}]".encode()


floats = st.floats(allow_nan=False, allow_infinity=False)
ordinary = st.one_of(
    floats, st.floats(-1, 1, width=32), st.integers(-(2**63), 2**64 - 1), st.decimals(-1000, 1000, places=3).map(float)
)


@thorough
@given(row=st.lists(ordinary, min_size=3, max_size=3), layout=st.integers(0, 3))
def test_ordinary_texts_are_parsed_by_simdjson(row: list[float], layout: int) -> None:
    write = [
        lambda value: json.dumps(value).encode(),
        orjson.dumps,
        lambda value: b"\n" + json.dumps(value, indent="\t").encode() + b"\r\n",
        lambda value: json.dumps(value).encode().replace(b",", b" ,\n"),
    ][layout]
    check(write(row), 3, accepted=True)
    check(write({"v": row}), 3, "v", accepted=True)
    event = {"at": "2026-01-01T00:00:00Z", "v": row, "n": 7, "good": True, "more": {"w": None}}
    check(write(event), 3, "v", accepted=True)
    check(write({"id": "[", "v": row}), 3, "v", accepted=False)
    check(write({"before": {"x": 1}, "a": {"b": {"c": row, "d": "é"}}}), 3, "a.b.c", accepted=b"\\" not in write("é"))


def test_random_numbers_as_producers_write_them() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 784))
    for table in (X, X.astype(np.float32), np.round(X, 3), rng.integers(0, 256, X.shape), 10.0 ** (20 * X)):
        for row in table:
            check(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY), 784, accepted=True)


@thorough
@given(words=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30), digits=st.integers(1, 25))
def test_any_float_with_any_number_of_digits(words: list[int], digits: int) -> None:
    numbers = [x for x in np.array(words, np.uint64).view(np.float64).tolist() if math.isfinite(x)]
    for written in ([f"{x:.{digits - 1}e}" for x in numbers], [repr(x) for x in numbers]):
        for text in written:
            check(array_of([text]), 1)


@pytest.mark.usefixtures("implementation")
@thorough
@given(
    sign=st.sampled_from(["", "-"]),
    before=st.from_regex(r"\A(0|[1-9][0-9]{0,22})\Z"),
    behind=st.from_regex(r"\A(|\.0{0,24}[0-9]{1,22})\Z"),
    power=st.from_regex(r"\A(|[eE][+-]?[0-9]{1,3})\Z"),
)
def test_any_decimal(sign: str, before: str, behind: str, power: str) -> None:
    check(f"[{sign}{before}{behind}{power}]".encode(), 1)


@thorough
@given(fraction=st.integers(2**52, 2**53 - 1), exponent=st.integers(-60, 60), by=st.integers(-2, 2))
def test_numbers_halfway_between_two_floats(fraction: int, exponent: int, by: int) -> None:
    """Rounded to 19 digits, just above and below, and in full."""
    odd = 2 * fraction + 1
    digits = str(odd << exponent if exponent >= 0 else odd * 5**-exponent)  # times 10^exponent
    leading, power = digits[:19], max(0, len(digits) - 19) + min(exponent, 0)
    for text in (f"{int(leading) + by}e{power}", f"{int(leading) + by}", f"{int(digits) + by}e{min(exponent, 0)}"):
        check(array_of([text]), 1)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("length", [*range(1, 41), 100, 400, 800])
def test_numbers_of_every_length(length: int) -> None:
    digits = ("1234567890" * 80)[:length]
    for text in (digits, f"0.{digits}", f"{digits}.5", f"{digits}e-9"):
        check(array_of([text]), 1, accepted=None if length > 19 else True)


DECLINED = [
    "36893488147419103232", "18446744073709551616", "-9223372036854775809", "1e400", "-1e400", "1e308000",
    "1.7976931348623159e308", "1e999999999999",
    "true", "false", "null", '"1"', "[1]", "[]", "{}", "[[1]]", '{"a": 1}', "NaN", "-NaN", "Infinity", "-Infinity",
    "nan", "inf", "", "-", "+1", "--1", "01", "-01", "00", "1.", ".5", "-.5", "1.e5", "1e", "1e+", "1e+-5", "1e5.0",
    "1 2", "1_0", "0x10", "1f", "1d", "e5", "1,", ",1", "/", ":", "１", "1\0", "\f1", "1\v", "\u00a01", "1//", "1#",
    "'1'",
]  # fmt: skip
ACCEPTED = [
    "0", "-0", "0.0", "-0.0", "-0e0", "0e5", "-0E-5", "0.000", "1", "-1", "1e0", "1E5", "1e+05", "1e-05", "1e22",
    "1e23", "8.5e22", "0.1", "0.3", "123456789012345678", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "9999999999999999999", "18446744073709551615", "9007199254740992", "9007199254740994",
    "1e-300", "1e300", "0.000000000000000000000000000001234567890123456789", "9007199254740993", "9007199254740993.0",
    "-9007199254740995", "9007199254740993e3", "3.265991064905111e16", "4503599627370496.5",  # halfway
    "-1125899906842625.125", "0.12345678901234567890", "1e-400", "-1e-400", "5e-324", "-2e-324", "3e-324",
    "2.2250738585072014e-308", "2.2250738585072011e-308", "1.7976931348623157e308", "1.7976931348623158e308",
    "0e400000000", "9223372036854775809", "18446744073709549569",
    "1.5", "2.5", "4503599627370496.499", "9007199254740992.9", "0e300", "1.0000000000000002",
    "100000000", "12345678", "0.12345678", "0.1234567812345678", "1.00000000", "99999999.99999999", "1e007",
]  # fmt: skip


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("around", [("", ""), ("0.5,", ""), ("", ",0.5"), (" 1 , ", " , 2 ")])
def test_array_entries(around: tuple[str, str]) -> None:
    for entries, accepted in ((DECLINED, False), (ACCEPTED, True)):
        for entry in entries:
            text = f"[{around[0]}{entry}{around[1]}]".encode()
            check(text, 1 + text.count(b","), accepted=accepted)
            check(b'{"w": 1, "v": %b}' % text, 1 + text.count(b","), "v", accepted=accepted)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize(
    "text",
    [
        b"", b" ", b"[", b"]", b"[]", b"[ ]", b"][", b"[1", b"1]", b"1", b"[1]]", b"[[1]]", b"[[1]", b"[1],", b"[1]\0",
        b"[1] 2", b"[1][2]", b"[1]x", b"x[1]", b"\xef\xbb\xbf[1]", b"\xff[1]", b"[1]\xff", b"[1\xff]", b"(1)", b"{1}",
        b"[1,2]", b"[1,]", b"[,1]", b"[1;]", b"\xa0[1]", b"\x0b[1]", b"[1]\x0c", b'"[1]"', b"[1}", b"[1 ] ]", b"null",
        b"[" * 2000 + b"1" + b"]" * 2000, b"[\x001]", "[1]".encode("utf-16"), b"// \n[1]", b"[1] // one",
        b"\xef\xbb\xbf", b"\xfe\xff[1]", b"[[],1]", b"[[1],[]]", b'[{"v": 1}]', b"[1]" + b" " * 70 + b"x",
        b" " * 64 + b"[1,2]",
    ],
)  # fmt: skip
def test_texts_that_simdjson_declines(text: bytes) -> None:
    check(text, 1, accepted=False)
    check(b"[1]", 1, accepted=True)


D = 4
ARRAY = b"[0, 1.5, -2, 3e1]"
OBJECTS_ACCEPTED = [
    ("v", b'{"v": @}'), ("v", b' {"v":@}\n'), ("v", b'{"w": "x", "v"\n:\t@ , "u": null}'),
    ("v", b'{"u": true, "v": @, "true": "V"}'), ("v", b'{"w": "\xc3\xa9 ]v", "v": @}'),
    ("v", b'{"w": {"u": {}}, "v": @, "x": 1e-400}'), ("v", b'{"vv": 1, "v": @, "w": "v:"}'),
    ("v", b'{"w": 1, "w": 2, "v": @}'),
    ("a.b", b'{"a": {"b": @}}'), ("a.b", b'{"c": "ab", "a": {"c": 2, "b": @}, "a.b": null}'),
    ("\u00e9", b'{"\xc3\xa9": @}'), ("a b", b'{"a b": @}'), ("0", b'{"0": @}'), (".v", b'{"": {"v": @}}'),
]  # fmt: skip
OBJECTS_DECLINED = [
    ("v", b""), ("v", b"@"), ("v", b'"v": @'), ("v", b'["v", @]'), ("0", b"@"), ("/0", b"@"), ("-", b"@"),
    ("v", b'[{"v": @}]'), ("v", b'{"w": {"v": @}}'), ("v", b'{"v": {"w": @}}'), ("v", b'{"v": null, "w": @}'),
    ("v", b'{"v": "@"}'), ("v", b'{"w": "\\"v\\": @"}'),  # in strings
    ("v", b'{"v": 1, "v": @}'), ("v", b'{"v": @, "v": 1}'), ("v", b'{"v": @, "v": [4, 5, 6, 7]}'),
    ("v", b'{"v": @, "\\u0076": 4}'), ("v", b'{"\\u0076": 4, "v": @}'), ("v", b'{"\\u0076": @}'),
    ("v", b'{"v": [@]}'), ("v", b'{"v": [@, 1]}'), ("v", b'{"v": -@}'), ("v", b'{"v": 1@}'), ("v", b'{"v": @1}'),
    ("v", b'{"v": [[0, 1], [2, 3], 4, []]}'), ("v", b'{"v": [0, 1, 2, []]}'), ("v", b'{"v": [0, [1, 2], 3]}'),
    ("v", b'{"v": [0, 1, 2, {"w": 3}]}'), ("v", b'{"v": [0, 1, 2, {"v": 3}]}'), ("v", b'{"v": [{"v": 1}, 1, 2, 3]}'),
    ("v", b'{"v": ["]", 1, 2, 3], "w": 1}'), ("v", b'{"v": ["v", 1, 2, 3]}'),
    ("v", b'{"v": @[4]}'), ("v", b'{"v": @'), ("v", b'{"v": @}}'), ("v", b'{"v": @, }'), ("v", b'{"v" @}'),
    ("v", b'{"v":: @}'), ("v", b"{'v': @}"), ("v", b'{"v": @}\0'), ("v", b'{"v": @} {}'), ("v", b'{"v": @, "w": NaN}'),
    ("v", b'\xef\xbb\xbf{"v": @}'), ("v", b'{"v": @, "w": "\xff"}'), ("v", b'{"v": @, "w": "\\ud800"}'),
    ("v", b'{"v": @, "w": "\xed\xa0\x80"}'), ("v", b'{"v": @, "w": "\xc0\xaf"}'), ("v", b'{"v": @, "w": "\xf4\x90"}'),
    ("v", b'{"v": @, "w": "\x01"}'), ("v", b'{"v": @, "w": 1e400}'), ("v", b'{"v": @, "w": 18446744073709551616}'),
    ("v", b'{"v": @, "w": 01}'), ("v", b'{"v": @, "w": tru}'), ("v", b'{"v": @, "w": truee}'), ("v", b'{"v": @, 1: 2}'),
    ("v", b'{"v": @, "w": ' + b"[" * 2000 + b"]" * 2000 + b"}"),
    ("v", b'{"v": @, "w": ' + b'{"a":' * 1030 + b"1" + b"}" * 1030 + b"}"),
    ("v", b'{"u": [1], "v": @}'), ("v", b'{"v": @, "w": "["}'), ("v", b'{"w": "\\\\", "v": @}'),
    ("a.b", b'{"a.b": @}'), ("a.b", b'{"a": 1, "b": @}'), ("a.b", b'{"a": [{"b": @}]}'), ("a.b", b'{"a": null}'),
    ("a.b", b'{"a": {"c": {"b": @}}}'), ("a.b", b'{"a": {"b": @}, "a": 1}'), ("a.b", b'{"a": "b", "b": @}'),
    ("a.b", b'{"a": {"b": @}, "a": {"b": [4, 5, 6, 7]}}'), ("a.b", b'{"a": {"b": @}, "a": {"c": 1}}'),
    ("a.b", b'{"a": {"b": @, "b": 1}}'),
    ("a.a", b'{"a": {"a": @}}'),
    # Names that contain delimiters.
    ("[", b'{"[": @}'), ("x[]", b'{"x[]": [[1], [2], [3], [4]], "x[]": 1}'), (":[],", b'{"x":[],":[],":@}'),
    ("]", b'{"v": @, "]": 1}'), ('"', b'{"\\"": @}'), ('v":"w', b'{"v":"w", "x": @}'), ("\0", b'{"\0": @}'),
    ("v\0x", b'{"v\0x": 1, "v": @}'), ("v\0x", b'{"v": @}'), ("\ud800", b'{"?": @}'), ("\\u0076", b'{"\\u0076": @}'),
]  # fmt: skip


@pytest.mark.usefixtures("implementation")
def test_objects() -> None:
    for objects, accepted in ((OBJECTS_ACCEPTED, True), (OBJECTS_DECLINED, False)):
        for field, value in objects:
            check(value.replace(b"@", ARRAY), D, field, accepted=accepted)


@pytest.mark.parametrize("depth", range(1015, 1030))
def test_nested_objects_around_the_depth_limits(depth: int) -> None:
    check(b'{"v": [1], "w": ' + b'{"a":' * depth + b"1" + b"}" * depth + b"}", 1, "v")
    check(b'{"a":' * depth + b"[1]" + b"}" * depth, 1, ".".join(["a"] * depth))
    names = [f"a{i}" for i in range(depth)]
    check("".join(f'{{"{name}":' for name in names).encode() + b"[1]" + b"}" * depth, 1, ".".join(names))


pieces = st.sampled_from(
    [*"[],0191-.eE+ \n\t\r", *'"{}:\0\x7fé/;', "12345678", "0.5", "e-5", "true", "null", "NaN", "[1,2]", "[-0]"]
)
parts = st.sampled_from(
    [*"@@@{}[],:\"\\1 \ufeff", '"v":', '"v"', '"w":', '{"v":', '"a":{', "null", "\\u0076", '"\\u0076":', "[]", "[[0],"]
)  # fmt: skip


@pytest.mark.usefixtures("implementation")
@thorough
@given(text=st.lists(pieces, max_size=8).map("".join), around=st.sampled_from(["%", "[%]", '{"v": [%]}']))
def test_anything_like_an_array(text: str, around: str) -> None:
    for dimensions in (1, 2, 3):
        check(around.replace("%", text).encode(), dimensions, "v" if "v" in around else "")


@thorough
@given(
    text=st.lists(parts, max_size=12).map("".join),
    around=st.sampled_from(["%", '{"v": %}', '{"v": %, %}', '{"w": %, "v": @ %}', '{"v": @, %}', '{"a": {"v": @, %}}']),
    field=st.sampled_from(["v", "v", "a.v", "v.v"]),
)
@example(text='"w":1', around='{"v": @, %}', field="v")
def test_anything_like_an_object(text: str, around: str, field: str) -> None:
    check(around.replace("%", text).replace("@", ARRAY.decode()).encode(), D, field)


@pytest.mark.usefixtures("implementation")
@thorough
@given(text=st.binary(max_size=12))
def test_any_bytes(text: bytes) -> None:
    check(text, 1)
    check(b"[1" + text + b"]", 1)
    check(b'{"w":"' + text + b'","v":[1]}', 1, "v")


VALUES = [
    b"[1, 2]",
    None,
    b"[1, 18446744073709551616]",
    b"[1]",
    b"[0.1, -0.0]",
    b"[1, true]",
    b"[[1, 2]]",
    b"[3, 1e-310]",
]


def test_results_are_the_same_without_simdjson(monkeypatch: pytest.MonkeyPatch) -> None:
    with_simdjson = Codec("json", 2, math.inf).decode(VALUES)
    monkeypatch.setitem(sys.modules, "simdjson", None)
    assert JsonVectorParser(2)._simdjson is None
    without = Codec("json", 2, math.inf).decode(VALUES)
    assert without.vectors.tobytes() == with_simdjson.vectors.tobytes()
    assert without.places.tolist() == with_simdjson.places.tolist() == [0, 2, 4, 7]
    assert without.rejects == with_simdjson.rejects


def test_a_broken_installation_of_simdjson_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "simdjson")
    monkeypatch.setitem(sys.modules, "csimdjson", None)
    assert JsonVectorParser(2)._simdjson is None


def test_results_stay_valid_after_the_next_parse() -> None:
    parser: Any = JsonVectorParser(2)._simdjson
    results = [parser.parse(orjson.dumps([i, -i])) for i in range(100)]
    assert np.frombuffer(b"".join(results)).tolist() == [x for i in range(100) for x in (i, -i)]
