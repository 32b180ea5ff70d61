"""simdjson returns the same bits as orjson, of vectors and of requests' rows, and parses all ordinary texts."""

import importlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streampca.stream.formats.json import JsonReader
from streampca.vectors.json import count, fast_fields, fast_vector, import_simdjson, new_parser
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
    yield
    parser.implementation = default


def outcome(dimensions: int, field: str, text: bytes, *, fast: bool = True) -> bytes | tuple[str, str]:
    reader = JsonReader(dimensions, field, gaps=False)
    if not fast:
        reader._parser = None
    try:
        return bytes(reader.read(text))
    except VectorError as error:
        return error.reason, str(error)


def check(text: bytes, dimensions: int, field: str = "", *, accepted: bool | None = None) -> None:
    """The numbers, or the error, are the same with and without simdjson; `accepted`: whether simdjson parses it."""
    expected = outcome(dimensions, field, text, fast=False)
    assert outcome(dimensions, field, text) == expected, text
    if accepted is not None:
        numbers = fast_vector(new_parser(), text, field.split(".") if field else [])
        assert (numbers is not None and numbers.nbytes == 8 * dimensions) is accepted, text


def array_of(numbers: Sequence[str]) -> bytes:
    return f"[{','.join(numbers)}]".encode()


floats = st.floats(allow_nan=False, allow_infinity=False)
ordinary = st.one_of(
    floats, st.floats(-1, 1, width=32), st.integers(-(2**63), 2**64 - 1), st.decimals(-1000, 1000, places=3).map(float)
)


LAYOUTS: list[Callable[[Any], bytes]] = [
    lambda value: json.dumps(value).encode(),
    orjson.dumps,
    lambda value: b"\n" + json.dumps(value, indent="\t").encode() + b"\r\n",
    lambda value: json.dumps(value).encode().replace(b",", b" ,\n"),
]


@thorough
@given(row=st.lists(ordinary, min_size=3, max_size=3), layout=st.integers(0, 3))
def test_ordinary_texts_are_parsed_by_simdjson(row: list[float], layout: int) -> None:
    write = LAYOUTS[layout]
    check(write(row), 3, accepted=True)
    check(write({"v": row}), 3, "v", accepted=True)
    event = {"at": "2026-01-01T00:00:00Z", "v": row, "n": 7, "good": True, "more": {"w": None}}
    check(write(event), 3, "v", accepted=True)
    check(write({"id": "[", "v": row}), 3, "v", accepted=False)
    check(write({"before": {"x": 1}, "a": {"b": {"c": row, "d": "é"}}}), 3, "a.b.c", accepted=b"\\" not in write("é"))


@thorough
@given(words=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30), digits=st.integers(1, 25))
def test_any_float_with_any_number_of_digits(words: list[int], digits: int) -> None:
    numbers = [x for x in np.array(words, np.uint64).view(np.float64).tolist() if math.isfinite(x)]
    for written in ([f"{x:.{digits - 1}e}" for x in numbers], [repr(x) for x in numbers]):
        for text in written:
            check(array_of([text]), 1)


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
    ("a.a", b'{"a": {"a": @}}'),
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
    check_fields(text)
    check_fields(b'{"vectors":[[1' + text + b"]]}")
    check_fields(b'{"basis":"' + text + b'","vectors":[[1]]}')


@pytest.mark.parametrize("broken", ["simdjson", "csimdjson"])
def test_without_simdjson_nothing_is_fast(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With csimdjson missing, simdjson is installed in part only."""
    monkeypatch.delitem(sys.modules, "simdjson")
    monkeypatch.setitem(sys.modules, broken, None)
    import_simdjson.cache_clear()
    assert new_parser() is None
    assert fast_vector(None, b"[1]", []) is None
    assert fast_fields(b"{}", NAMES) is None
    import_simdjson.cache_clear()


def test_results_stay_valid_after_the_next_parse() -> None:
    parser = new_parser()
    results = [fast_vector(parser, orjson.dumps([i, -i]), []) or b"" for i in range(100)]
    assert np.frombuffer(b"".join(results)).tolist() == [x for i in range(100) for x in (i, -i)]


# Fields and rows of requests.

NAMES = ("vectors", "basis", "version")
ROWS = b"[[1,2],[3,4]]"


def check_fields(text: bytes, *, accepted: bool | None = None) -> None:
    """What simdjson finds, orjson finds too; `accepted`: whether simdjson parses it."""
    found = fast_fields(text, NAMES)
    if accepted is not None:
        assert (found is not None) is accepted, text
    if found is None:
        return
    expected = orjson.loads(text)
    assert found.keys() == expected.keys(), text
    for name, value in found.items():
        if isinstance(value, np.ndarray):
            assert {type(number) for row in expected[name] for number in row} <= {int, float}
            rows = np.array([[float(number) for number in row] for row in expected[name]])
            assert (value.dtype, value.shape, value.tobytes()) == (rows.dtype, rows.shape, rows.tobytes()), text
        else:
            assert (type(value), value) == (type(expected[name]), expected[name]), text


tables = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(ordinary, min_size=width, max_size=width), min_size=1, max_size=4)
)


@thorough
@given(rows=tables, layout=st.integers(0, 3), basis=st.sampled_from(["principal", "é\n", None]))
def test_ordinary_requests_are_parsed_by_simdjson(rows: list[list[float]], layout: int, basis: str | None) -> None:
    write = LAYOUTS[layout]
    check_fields(write({"vectors": rows}), accepted=True)
    check_fields(write({"basis": basis, "vectors": rows, "version": 2**63 - 1}), accepted=True)


@pytest.mark.parametrize(("n", "d"), [(256, 784), (1, 20_000), (20_000, 1)])
def test_long_requests_are_parsed_by_simdjson(n: int, d: int) -> None:
    rows = np.random.default_rng(0).standard_normal((n, d))
    check_fields(orjson.dumps({"vectors": rows}, option=orjson.OPT_SERIALIZE_NUMPY), accepted=True)


FIELDS_ACCEPTED = [
    b'{"vectors":@}', b'{"\\u0076ectors":@}', b'{"vectors":[[1]]}',
    b'{"vectors":[[-0,-0.0],[1e-400,18446744073709551615]]}',
    b"{}", b'{"basis":"x"}', b'{"version":-0}', b'{"version":-0.0}', b'{"version":1e2}',
    b'{"version":true,"vectors":@}',
    b'{"vectors":null}', b'{"vectors":"x"}', b'{"vectors":1}', b'{"basis":"\\"]}","vectors":@}', b'{"basis":@}',
    b'{"basis":"\\u0000","vectors":@}', b'{"basis":"\\ud83d\\ude00","vectors":@}',
]  # fmt: skip
FIELDS_DECLINED = [
    # Nested, ragged, empty or mixed rows; of some, the flattened numbers are as many as those of rows.
    b'{"vectors":[]}', b'{"vectors":[[]]}', b'{"vectors":[[],[]]}', b'{"vectors":[1,2]}', b'{"vectors":[[1],2]}',
    b'{"vectors":[1,[2]]}', b'{"vectors":[[1],[]]}', b'{"vectors":[[1],[2,3]]}', b'{"vectors":[[[1,2]]]}',
    b'{"vectors":[[[1],[2]]]}', b'{"vectors":[[1,[2]],[3,4]]}', b'{"vectors":[[[1,2],[]],[3,4]]}',
    b'{"vectors":[[[1,2],3],[[],4]]}', b'{"vectors":[1,[2,[3]]]}', b'{"vectors":[[1,2],{"a":3}]}',
    b'{"vectors":[[1,{}]]}',
    b'{"vectors":[[1,true]]}', b'{"vectors":[[false]]}', b'{"vectors":[[null]]}', b'{"vectors":[["1"]]}',
    b'{"vectors":["12",[1,2]]}', b'{"vectors":["12","34"]}', b'{"vectors":[{"a":1}]}', b'{"vectors":{"0":[1]}}',
    # Numbers that one of the two refuses or rounds.
    b'{"vectors":[[18446744073709551616]]}', b'{"vectors":[[1e400]]}', b'{"vectors":[[NaN]]}', b'{"vectors":[[01]]}',
    b'{"version":18446744073709551616}', b'{"vectors":@,"version":1e400}',
    # Fields: unknown, duplicate, or more than one array.
    b'{"vector":@}', b'{"vectors":@,"more":1}', b'{"vectors":@,"vectors":@}', b'{"vectors":1,"vectors":@}',
    b'{"vectors":@,"\\u0076ectors":1}', b'{"version":1,"version":2,"vectors":@}', b'{"vectors\\u0000":@}',
    b'{"vectors\0":@}', b'{"vectors":@,"basis":[]}', b'{"vectors":@,"basis":@}', b'{"basis":{},"vectors":@}',
    b'{"basis":"[","vectors":@}', b'{"1":1,"2":2,"3":3,"4":4}',
    # Not JSON, or no object.
    b"", b" ", b"{", b"@", b"[@]", b"1", b"null", b'"vectors"', b'{"vectors":@', b'{"vectors":@}}', b'{"vectors":@}{}',
    b'{"vectors":@}\0', b'{"vectors":@,}', b"{'vectors':@}", b'\xef\xbb\xbf{"vectors":@}', b'{"vectors":[[1,]]}',
    b'{"vectors":@,"basis":"\xff"}', b'{"vectors":@,"basis":"\\ud800"}', b'{"vectors":@,"basis":"\xed\xa0\x80"}',
    b'{"vectors":@,"basis":"\x01"}', b'{"vectors":@,"\\ud800":1}', b'{"vectors":@,"basis":tru}',
    b'{"vectors":' + b"[" * 2000 + b"1" + b"]" * 2000 + b"}",
]  # fmt: skip


@pytest.mark.usefixtures("implementation")
def test_fields() -> None:
    for texts, accepted in ((FIELDS_ACCEPTED, True), (FIELDS_DECLINED, False)):
        for text in texts:
            check_fields(text.replace(b"@", ROWS), accepted=accepted)


field_pieces = st.sampled_from(
    [*'[]{},:"\\ 0@', '"vectors":', '"vectors":@', '"basis":', '"version":', "\\u0076", "[[0],", "[1,2]", "],[", "null",
     "true", "-0", "1e5", "1.5", '"principal"', "\ufeff", "é"]
)  # fmt: skip


@thorough
@given(
    text=st.lists(field_pieces, max_size=8).map("".join),
    around=st.sampled_from(["%", "{%}", '{"vectors":[%]}', '{"vectors":[[%]]}', '{"vectors":[[1],[%]]}',
                            '{"vectors":@,%}', '{%,"vectors":@}']),
)  # fmt: skip
def test_anything_like_a_request(text: str, around: str) -> None:
    check_fields(around.replace("%", text).replace("@", ROWS.decode()).encode())


@given(
    st.lists(st.sampled_from([b"[", b"[[", b"]", b"12", "é".encode()]), max_size=50).map(b"".join), st.integers(1, 9)
)
def test_count_counts_as_bytes_do(text: bytes, at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("streampca.vectors.json._COUNTED_BYTES", at_once)
        assert count(text, b"[") == text.count(b"[")
