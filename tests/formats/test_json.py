"""Numbers in JSON are rounded to the nearest float64, as Python's parser rounds them, and nothing else is one."""

import gzip
import itertools
import json
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings, strategies as st

from streampca.formats.errors import VectorError, missing_field_error
from streampca.formats.json import loads
from tests.formats.structured import (
    D,
    assert_rejected,
    codec,
    only_reject,
    skipped_in,
)

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


def python_int(digits: str) -> int | float:
    """Python refuses texts of more than 4,300 digits as whole numbers."""
    return int(digits) if len(digits) < 300 else float(digits)


def assert_read_as_python_reads(text: str) -> None:
    """Numbers and commas as Python's parser reads them, or refused where it refuses them."""
    try:
        expected = np.array(json.loads(f"[{text}]", strict=False, parse_int=python_int), np.float64)
    except ValueError:
        with pytest.raises(VectorError, match="not JSON"):
            loads(f"[{text}]".encode())
    else:
        assert np.array(loads(f"[{text}]".encode()), np.float64).tobytes() == expected.tobytes(), text


@pytest.mark.parametrize("number", NUMBERS)
def test_unusual_numbers_are_read_as_python_reads_them(number: str) -> None:
    assert_read_as_python_reads(number)


@pytest.mark.parametrize(
    "beside",
    [
        b"NaN",
        b"-Infinity",
        b"1e400",
        b'"half \\ud83d"',
        b'"Stra\xdfe"',
        b'"a\tb\0"',
        b"9" * 5000,
        b'{"\xdf": "\\udc00"}',
    ],
)
def test_what_lies_beside_the_vector_rejects_nothing(beside: bytes) -> None:
    values = [b'{"x": %b, "v": [1, true, 3]}' % beside, b'\0\0\0\0\7\xef\xbb\xbf{"v": [4, 5, 6], "x": [%b]}' % beside]
    decoded = codec("json", "v").decode(values)
    assert decoded.vectors.tolist() == [[1, 1, 3], [4, 5, 6]], decoded.rejects


@pytest.mark.parametrize("beside", [b"nan", b"+1", b"1_0", b"'a'", b"0x1", b'"a', b"\xdf", b"1e", b"\0"])
def test_what_is_not_json_is_rejected(beside: bytes) -> None:
    assert_rejected(codec("json", "v").decode([b'{"x": %b, "v": [1, 2, 3]}' % beside]), "undecodable", "not JSON")


def message_pack(row: Sequence[float]) -> bytes:
    n = len(row)
    head = bytes([0x90 + n]) if n < 16 else b"\xdc" + struct.pack(">H", n)
    return head + b"".join(b"\xcb" + struct.pack(">d", number) for number in row)


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress, "zlib": zlib.compress, "MessagePack": lambda text: message_pack(np.ravel(json.loads(text))),
    "zstd": lambda text: pa.compress(text, "zstd", asbytes=True),
    "lz4": lambda text: pa.compress(text, "lz4", asbytes=True),
    "UTF-16": lambda text: text.decode().encode("utf-16"),
    "in UTF-16": lambda text: text.decode().encode("utf-16-be"),
    "text in UTF-16": lambda text: text.decode().encode("utf-16-le"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["json", "csv"])
@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("row", [[1.5, -2, 0.25], [1.5] * 40, [[0.25] * 3] * 300])
def test_a_packed_value_is_called_what_it_is(kind: str, name: str, row: list[float]) -> None:
    decoded = codec(kind).decode([PACKED[name](json.dumps(row).encode())])
    assert name in only_reject(decoded)[1]


@pytest.mark.parametrize("text", ["Straße", "Übung", "ßb", "Üb,1", "x^2,3,4"])
@pytest.mark.parametrize("kind", ["json", "csv"])
def test_other_text_is_not_called_packed(kind: str, text: str) -> None:
    assert "; it" not in only_reject(codec(kind).decode([text.encode("latin-1")]))[1]


@given(st.lists(st.from_regex(NUMBER, fullmatch=True) | st.floats().map(repr) | NEARLY, min_size=1, max_size=3))
def test_text_is_read_or_refused_as_python_does(entries: list[str]) -> None:
    assert_read_as_python_reads(",".join(entries))


@pytest.mark.parametrize(
    ("value", "reason", "words"),
    [
        (b"", "undecodable", "not JSON"),
        (b"[NaN,2,3]", "not_finite", "entry 0 is nan (missing=impute learns vectors with gaps)"),
        (b"[1e999,2,3]", "not_finite", "entry 0 is inf"),
        (b"[" + b"9" * 5000 + b",2,3]", "not_finite", "entry 0 is inf"),
        (b"[" * 100_000, "undecodable", "not JSON"),
        (b"1.5", "undecodable", "not a number"),
        (b'"abc"', "undecodable", "not a string"),
        (b"true", "undecodable", "not a boolean"),
        (b'{"0":1}', "undecodable", "not an object"),
        (b"[null,2,3]", "undecodable", "entry 0 must be a number, not null (missing=impute learns vectors with gaps)"),
        (b'[1,true,"2"]', "undecodable", "entry 2 must be a number, not a string"),
        (b'[1,"2",true]', "undecodable", "entry 1 must be a number, not a string"),
        (b"[1,[2],3]", "undecodable", "entry 1 must be a number, not an array"),
        (b"[1,2,{}]", "undecodable", "entry 2 must be a number, not an object"),
        (b"[[1,2],[3,4]]", "wrong_length", "2 arrays of 2 numbers, not of 3"),
        (b"[[1,2],[3,4,5]]", "wrong_length", "2 arrays of 2 to 3 numbers, not of 3"),
        (b"[1,2,3,4,5,6]", "wrong_length", "6 numbers, not 3"),
        (b"[1,2,3,4]", "wrong_length", "4 numbers, not 3"),
        (b"[1,2e200,3]", "too_large", r"entry 1 is 2e\+200"),
        (b"[1,-1.7e308,3]", "too_large", r"entry 1 is -1.7e\+308"),
        (b"[1," + b"9" * 300 + b",3]", "too_large", r"entry 1 is 1e\+300"),
    ],
)  # fmt: skip
def test_invalid_json_vectors_are_rejected(value: bytes, reason: str, words: str) -> None:
    assert_rejected(codec().decode([value]), reason, words.replace("\\", ""))


def test_a_number_too_small_for_single_precision_is_rounded_silently() -> None:
    [vector] = codec(dtype="float32").decode([b"[1e-60,1e-40,1]"]).vectors
    assert vector.tolist() == [0, float(np.float32(1e-40)), 1]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("a", b"[1,2,3]", "a number has no field 'a'"),
        ("a", b"{}", "there is none, but not 'a'"),
        ("a", b'{"A":[1,2,3],"id":7}', "there is 'A', 'id', but not 'a'; field=A reads 3 numbers"),
        ("a.b", b"7", "a number has no field 'a'"),
        ("a.b", b'{"a":[1,2,3]}', "a number has no field 'b'; field=a reads 3 numbers"),
        ("a.b", b'{"a.b":[1,2,3]}', "there is 'a.b', but not 'a'; field=`a.b` reads 3 numbers"),
        ("a.b", b'{"a":{"c":[1,2,3]}}', "there is 'c', but not 'b'; field=a.c reads 3 numbers"),
    ],
)
def test_the_message_for_a_missing_field_names_the_fields_that_exist(field: str, value: bytes, message: str) -> None:
    reject = only_reject(codec(field=field).decode([value]))
    assert reject == ("undecodable", f"no field {field!r} in the JSON object: {message}")


@pytest.mark.parametrize(
    ("field", "value", "hint"),
    [
        ("a", b'{"a":{"b":[1,2,3]}}', "'b'; field=a.b reads 3 numbers"),
        ("", b'{"id":7,"a":[1,2,3]}', "'id', 'a'; field=a reads 3 numbers"),
        ("", b'{"temp":7,"hum.in":1.5,"press":3,"unit":"K"}', "field=temp,`hum.in`,press reads 3 numbers"),
        ("", b'{"at":1,"fields":{"x":1,"y":2,"z":3}}', "field=fields.x,fields.y,fields.z reads 3 numbers"),
    ],
)
def test_an_object_is_rejected_with_a_field_that_reads_it(field: str, value: bytes, hint: str) -> None:
    reason, message = only_reject(codec(field=field).decode([value]))
    assert reason == "undecodable"
    assert message.startswith("expected an array of numbers, not an object with ")
    assert message.endswith(hint)
    better = message.partition("; field=")[2].removesuffix(" reads 3 numbers")
    assert len(codec(field=better).decode([value]).vectors) == 1


@given(st.dictionaries(st.text().map(lambda name: name * 200), st.none(), max_size=12))
def test_the_message_for_a_missing_field_is_short(fields: dict[str, None]) -> None:
    fields.pop("v", None)
    text = str(missing_field_error("v", "v", fields, "JSON object"))
    assert len(text) < 700
    assert "\n" not in text


# The fast paths, beside a slow reference that checks every entry.


NUMBER_TYPES = (int, float, bool)
LARGEST = 1e150


def reference(value: bytes, field: str = "") -> list[float] | None:
    """Return the vector of a value, read by Python's parser; None if the value is not a vector."""
    is_framed = value[:1] == b"\0"
    text = value[5:] if is_framed else value
    try:
        content = json.loads(text.decode("utf-8-sig", "replace"), strict=False, parse_int=python_int)
    except ValueError:
        return None
    for name in field.split(".") if field else ():
        if type(content) is not dict or name not in content:
            return None
        content = content[name]
    while type(content) is list and list in map(type, content) and set(map(type, content)) <= {list, type(None)}:
        arrays = [entry for entry in content if entry is not None]
        content = list(itertools.chain.from_iterable(arrays))
    if type(content) is not list or len(content) != D or any(type(entry) not in NUMBER_TYPES for entry in content):
        return None
    row = [float(entry) for entry in content]
    return row if all(abs(entry) <= LARGEST for entry in row) else None


numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, min_value=-1e100, max_value=1e100),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([0, 1, -1, 0.0, -0.0, 1.0]),
)


odd_entries = st.one_of(
    numbers,
    st.booleans(),
    st.none(),
    st.sampled_from(["true", "1", "", "t", "f"]),
    st.integers(2**64, 10**30),
    st.lists(numbers, max_size=2),
    st.dictionaries(st.sampled_from("tf"), numbers, max_size=1),
)


arrays = st.one_of(
    st.lists(numbers, min_size=D, max_size=D),
    st.lists(numbers, min_size=D - 1, max_size=D + 1),
    st.lists(st.one_of(numbers, odd_entries), min_size=D, max_size=D),
)


others = st.one_of(odd_entries, st.dictionaries(st.text("truefalse v", max_size=8), odd_entries, max_size=3))


def check_json(value: bytes, field: str = "") -> None:
    """Decoding a value gives the vector that Python's parser reads, or one reject or delete if there is none."""
    expected = reference(value, field)
    decoded = codec("json", field, largest_value=LARGEST).decode([value])
    if expected is None:
        assert decoded.vectors.shape == (0, D)
        assert len(decoded.rejects) + len(decoded.skipped) == 1
        assert {reject.reason for reject in decoded.rejects} <= {
            "undecodable",
            "wrong_length",
            "not_finite",
            "too_large",
        }
    else:
        assert decoded.rejects == []
        assert decoded.vectors.tobytes() == np.array([expected]).tobytes()


@settings(deadline=None)
@given(value=arrays)
@example(value=[True, 0, 0])
@example(value=[1.5, 2, False])
def test_arrays_are_decoded_like_the_reference(value: list[Any]) -> None:
    check_json(json.dumps(value).encode())


@settings(deadline=None)
@given(value=arrays, more=others, name=st.sampled_from(["v", "t", "true", "v.false", "é"]))
def test_arrays_in_objects_are_decoded_like_the_reference(value: list[Any], more: Any, name: str) -> None:
    inner: Any = value
    for part in reversed(name.split(".")):
        inner = {"before": more, part: inner, "after": [more, True]}
    check_json(json.dumps(inner, ensure_ascii=False).encode(), name)


@settings(deadline=None, max_examples=300)
@given(value=arrays, seed=st.integers(0, 2**32))
def test_corrupted_text_is_decoded_like_the_reference(value: list[Any], seed: int) -> None:
    rng = random.Random(seed)
    text = bytearray(json.dumps(value).encode())
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text) + 1)
        text[at : at + rng.randint(0, 2)] = rng.choice(
            [b"", b",", b"[", b"]", b"e", b"true", b"false", b"null", b"0", b"-", b".", b'"', b"\0", b"\xef\xbb\xbf"]
        )
    check_json(bytes(text))


@pytest.mark.parametrize(
    "text",
    [b'[1, "nan", null, 2]', b"[1, [2], null, 3]", b"[1, null, 2]", b"[NaN, 1, 2, Infinity]"],
)
def test_json_without_a_vector_is_rejected_also_with_imputation(text: bytes) -> None:
    only_reject(codec(d=4, min_observed=2).decode([text]))


def test_a_field_of_json_may_have_gaps() -> None:
    decoded = codec("json", "a.b", d=4, min_observed=2).decode(
        [b'{"a": {"b": [1, null, 3, NaN], "c": null}}', b'{"a": {"b": null}}']
    )
    assert decoded.vectors.tolist()[0][::2] == [1, 3]
    assert np.isnan(decoded.vectors[0, 1::2]).all()
    assert (decoded.rejects, skipped_in(decoded)) == ([], [1])
