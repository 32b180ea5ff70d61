"""Decoding bytes to vectors: each format against an independent encoder, and everything that must be rejected."""

import json
import math
import random
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streampca.formats.codec import REASONS, Codec
from streampca.formats.judge import Judge
from streampca.formats.packing import missing_field
from streampca.pca.learning import LearningConfig
from tests.formats.structured import npy, only_reject

D = 3
FORMATS = ("json", "float32", "float64", "npy")
LARGEST = 1e150


def codec(kind: str = "json", field: str = "", largest_value: float = LARGEST, dtype: str = "float64") -> Codec:
    return Codec(kind, Judge(D, largest_value, dtype), field)


def npy_of(header: str | bytes, data: bytes = b"", version: int = 1) -> bytes:
    """An .npy file with any header."""
    text = header.encode() if isinstance(header, str) else header
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def header_of(descr: str, shape: str) -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


def encoded(kind: str, row: list[float]) -> bytes:
    """The row, encoded by the standard library alone (.npy: by NumPy)."""
    match kind:
        case "json":
            return json.dumps(row).encode()
        case "npy":
            return npy(np.array(row))
    return struct.pack(f"<{len(row)}{'f' if kind == 'float32' else 'd'}", *row)


rows = st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=D, max_size=D)


@settings(deadline=None)
@given(batch=st.lists(rows, max_size=6), dtype=st.sampled_from(["float32", "float64"]))
@pytest.mark.parametrize("kind", FORMATS)
def test_decoding_returns_the_encoded_vectors(kind: str, batch: list[list[float]], dtype: str) -> None:
    decoded = codec(kind, dtype=dtype).decode([encoded(kind, row) for row in batch])
    assert decoded.vectors.dtype == dtype
    assert decoded.vectors.shape == (len(batch), D)
    assert decoded.indices.tolist() == list(range(len(batch)))
    assert decoded.rejects == []
    np.testing.assert_array_equal(decoded.vectors, np.array(batch, dtype).reshape(-1, D))


SOME_BYTES = st.one_of(
    st.none(),
    st.binary(max_size=60),
    rows.map(lambda row: json.dumps(row).encode()),
    rows.map(lambda row: encoded("float32", row)),
    rows.map(lambda row: encoded("float64", row)),
    rows.map(lambda row: npy(np.array(row))),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode()),
    st.tuples(st.text(max_size=80), st.binary(max_size=24)).map(lambda parts: npy_of(*parts)),
    st.lists(st.integers(0, 0xFF), min_size=12, max_size=12).map(bytes),  # any float32, also NaN with a payload
    st.tuples(st.sampled_from(["<f8", ">f4", "<i2", "|O", "|b1", "<c16", "<U3", "xx"]), st.integers(-1, 4)).map(
        lambda parts: npy_of(header_of(repr(parts[0]), f"({parts[1]},)"), b"\0" * 24)
    ),
)


@settings(deadline=None)
@given(values=st.lists(SOME_BYTES, max_size=12), dtype=st.sampled_from(["float32", "float64"]))
@pytest.mark.parametrize("kind", FORMATS)
def test_every_value_is_decoded_or_rejected_as_it_is_alone(kind: str, values: list[bytes | None], dtype: str) -> None:
    one = codec(kind, dtype=dtype, largest_value=LearningConfig(D, 1, dtype=dtype).largest_value)
    decoded = one.decode(values)
    rejected = [reject.index for reject in decoded.rejects]
    assert sorted([*decoded.indices.tolist(), *rejected]) == list(range(len(values)))
    assert decoded.indices.tolist() == sorted(decoded.indices.tolist())
    assert rejected == sorted(rejected)
    assert {reject.reason for reject in decoded.rejects} <= set(REASONS)
    assert decoded.vectors.shape == (len(decoded.indices), D)
    assert decoded.vectors.dtype == dtype
    assert np.isfinite(decoded.vectors).all()
    assert (np.abs(decoded.vectors.astype(np.float64)) <= one.judge.largest_value).all()
    alone = [one.decode([value]) for value in values]
    assert decoded.vectors.tobytes() == b"".join(single.vectors.tobytes() for single in alone)
    assert decoded.rejects == [
        replace(reject, index=index) for index, single in enumerate(alone) for reject in single.rejects
    ]


@pytest.mark.parametrize(
    ("value", "reason", "words"),
    [
        (None, "no_value", "tombstone"),
        (b"", "undecodable", "not JSON"),
        (b"[NaN,2,3]", "undecodable", "not JSON"),
        (b"[1e999,2,3]", "undecodable", "not JSON"),
        (b"[" + b"9" * 400 + b",2,3]", "undecodable", "not JSON"),
        (b"[" * 100_000, "undecodable", "not JSON"),
        (b"1.5", "undecodable", "not a number"),
        (b'"abc"', "undecodable", "not a string"),
        (b"null", "undecodable", "not null"),
        (b"true", "undecodable", "not a boolean"),
        (b'{"0":1}', "undecodable", "not an object"),
        (b"[null,2,3]", "undecodable", "entry 0 must be a number, not null (missing=impute learns vectors with gaps)"),
        (b'[1,true,"2"]', "undecodable", "entry 1 must be a number, not a boolean"),
        (b'[1,"2",true]', "undecodable", "entry 1 must be a number, not a string"),
        (b"[1,[2],3]", "undecodable", "entry 1 must be a number, not an array"),
        (b"[1,2,{}]", "undecodable", "entry 2 must be a number, not an object"),
        (b"[[1,2,3]]", "wrong_length", "1 numbers, not 3"),
        (b"[1,2,3,4]", "wrong_length", "4 numbers, not 3"),
        (b"[1,2e200,3]", "too_large", r"entry 1 is 2e\+200"),
        (b"[1,-1.7e308,3]", "too_large", r"entry 1 is -1.7e\+308"),
        (b"[1," + b"9" * 300 + b",3]", "too_large", r"entry 1 is 1e\+300"),
    ],
)  # fmt: skip
def test_invalid_json_vectors_are_rejected(value: bytes | None, reason: str, words: str) -> None:
    actual, message = only_reject(codec().decode([value]))
    assert actual == reason
    assert words.replace("\\", "") in message


def test_a_number_too_small_for_single_precision_is_rounded_silently() -> None:
    [vector] = codec(dtype="float32").decode([b"[1e-60,1e-40,1]"]).vectors
    assert vector.tolist() == [0, float(np.float32(1e-40)), 1]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("a", b"[1,2,3]", "an array has no field 'a'"),
        ("a", b"{}", "there is none, but not 'a'"),
        ("a", b'{"A":[1,2,3],"id":7}', "there is 'A', 'id', but not 'a'"),
        ("a.b", b"7", "a number has no field 'a'"),
        ("a.b", b'{"a":[1,2,3]}', "an array has no field 'b'"),
        ("a.b", b'{"a.b":[1,2,3]}', "there is 'a.b', but not 'a'"),
        ("a.b", b'{"a":{"c":[1,2,3]}}', "there is 'c', but not 'b'"),
    ],
)
def test_the_message_for_a_missing_field_names_those_that_there_are(field: str, value: bytes, message: str) -> None:
    reject = only_reject(codec(field=field).decode([value]))
    assert reject == ("undecodable", f"no field {field!r} in the JSON object: {message}")


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("a", b'{"a":null}', "null"),
        ("a", b'{"a":{"b":[1,2,3]}}', "an object with 'b': set `field` to where the vector is"),
        ("", b'{"id":7,"a":[1,2,3]}', "an object with 'id', 'a': set `field` to where the vector is"),
    ],
)
def test_a_value_that_is_no_array_is_rejected(field: str, value: bytes, kind: str) -> None:
    message = f"expected a JSON array of numbers, not {kind}"
    assert only_reject(codec(field=field).decode([value])) == ("undecodable", message)


@given(st.dictionaries(st.text().map(lambda name: name * 200), st.none(), max_size=12))
def test_the_message_for_a_missing_field_is_short(fields: dict[str, None]) -> None:
    fields.pop("v", None)
    text = str(missing_field("v", "v", fields, "JSON object"))
    assert len(text) < 700
    assert "\n" not in text


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("change", [-1, 1, -8, 8])
def test_raw_bytes_of_wrong_length_are_rejected(kind: str, change: int) -> None:
    value = (encoded(kind, [1.0, 2.0, 3.0]) + bytes(8))[: D * (4 if kind == "float32" else 8) + change]
    reason, message = only_reject(codec(kind).decode([value]))
    assert reason == "wrong_length"
    assert str(len(value)) in message


@pytest.mark.parametrize("kind", ["float32", "float64", "npy"])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_rejected_with_their_index(kind: str, odd: float) -> None:
    hint = " (missing=impute learns vectors with gaps)" if np.isnan(odd) else ""
    reject = only_reject(codec(kind).decode([encoded(kind, [0.0, odd, odd])]))
    assert reject == ("not_finite", f"entry 1 is {odd}{hint}")


@pytest.mark.parametrize(("kind", "pattern"), [("float32", b"\x01\x00\x80\x7f"), ("float64", bytes(6) + b"\xf4\x7f")])
def test_a_signalling_nan_raises_no_warning(kind: str, pattern: bytes) -> None:
    good = encoded(kind, [1.0, 2.0, 3.0])
    decoded = codec(kind).decode([good, pattern * D, good])
    assert decoded.indices.tolist() == [0, 2]
    assert decoded.rejects[0].reason == "not_finite"


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, dtype) for kind in FORMATS for dtype in ("float32", "float64") if (kind, dtype) != ("float32", "float64")],
)  # no square of a float32 overflows float64
def test_the_largest_value_is_accepted_and_the_next_one_rejected(kind: str, dtype: str) -> None:
    largest = LearningConfig(D, 1, dtype=dtype).largest_value
    if kind == "float32":  # the nearest float32 on either side
        low = float(np.float32(largest))
        low = low if low <= largest else float(np.nextafter(np.float32(low), np.float32(0)))
        high = float(np.nextafter(np.float32(low), np.float32(np.inf)))
    else:
        low, high = largest, float(np.nextafter(largest, np.inf))
    one = codec(kind, dtype=dtype, largest_value=largest)
    decoded = one.decode([encoded(kind, [0.0, sign * size, 1.0]) for size in (low, high) for sign in (1, -1)])
    assert decoded.indices.tolist() == [0, 1]
    assert [reject.reason for reject in decoded.rejects] == ["too_large"] * 2
    assert f"squares overflow {dtype}" in decoded.rejects[0].message


@settings(deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_large_values_are_rejected_in_batches_of_any_magnitude(kind: str, data: st.DataObject) -> None:
    largest = LearningConfig(D, 1, dtype="float32").largest_value
    entry = st.one_of(
        st.floats(0.1, 10).map(lambda factor: factor * largest), st.floats(allow_nan=True, width=32), st.just(1.0)
    )
    rows = np.array(data.draw(st.lists(st.lists(entry, min_size=D, max_size=D), min_size=1, max_size=9)), kind)
    decoded = codec(kind, dtype="float32", largest_value=largest).decode([row.tobytes() for row in rows])
    with np.errstate(invalid="ignore"):
        good = (np.isfinite(rows) & (np.abs(rows.astype(np.float64)) <= largest)).all(axis=1)
    assert decoded.indices.tolist() == np.flatnonzero(good).tolist()


@pytest.mark.parametrize("dtype", [">f8", "<f4", ">f4", "<f2", "|i1", ">i8", "<u8"])
def test_npy_may_have_any_real_type_and_byte_order(dtype: str) -> None:
    decoded = codec("npy").decode([npy(np.array([1, 2, 3], dtype))] * 2)
    assert decoded.vectors.tolist() == [[1, 2, 3]] * 2


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
    actual, message = only_reject(codec("npy").decode([value]))
    assert actual == reason
    assert words in message


# The fast paths for JSON, beside a slow reference that checks every entry.


def reference(value: bytes, field: str = "") -> list[float] | None:
    """The vector of a value; None if it has none."""
    try:
        content = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    for name in field.split(".") if field else ():
        if type(content) is not dict or name not in content:
            return None
        content = content[name]
    if type(content) is not list or len(content) != D or any(type(entry) not in (int, float) for entry in content):
        return None
    return [float(entry) for entry in content]


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
    expected, decoded = reference(value, field), codec("json", field, math.inf).decode([value])
    if expected is None:
        assert decoded.vectors.shape == (0, D)
        assert [reject.reason in ("undecodable", "wrong_length") for reject in decoded.rejects] == [True]
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
