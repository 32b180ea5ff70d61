"""The fast paths for JSON decode like a slow reference that checks every entry."""

import json
import math
import random
from typing import Any

import numpy as np
import orjson
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streampca.fold.codec import Codec
from streampca.fold.events import Reject
from streampca.fold.judge import Judge

D = 4


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
entries = st.one_of(
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
    st.lists(st.one_of(numbers, entries), min_size=D, max_size=D),
)
others = st.one_of(entries, st.dictionaries(st.text("truefalse v", max_size=8), entries, max_size=3))


def check(value: bytes, field: str = "") -> None:
    expected, decoded = reference(value, field), Codec("json", Judge(D, math.inf), field).decode([value])
    if expected is None:
        assert decoded.vectors.shape == (0, D)
        assert [reject.reason in ("undecodable", "wrong_length") for reject in decoded.rejects] == [True]
    else:
        assert decoded.rejects == []
        assert decoded.vectors.tobytes() == np.array([expected]).tobytes()


@settings(deadline=None)
@given(value=arrays)
@example(value=[True, 0, 0, 0])
@example(value=[1.5, 2, 3, False])
def test_arrays_are_decoded_like_the_reference(value: list[Any]) -> None:
    check(json.dumps(value).encode())


@settings(deadline=None)
@given(value=arrays, more=others, name=st.sampled_from(["v", "t", "true", "v.false", "é"]))
def test_arrays_in_objects_are_decoded_like_the_reference(value: list[Any], more: Any, name: str) -> None:
    inner: Any = value
    for part in reversed(name.split(".")):
        inner = {"before": more, part: inner, "after": [more, True]}
    check(json.dumps(inner, ensure_ascii=False).encode(), name)


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
    check(bytes(text))


def test_the_error_names_the_first_entry_that_is_not_a_number() -> None:
    values = [b'[1, true, "2", null]', b'[1, "2", true, null]', b"[1, null, 2, 3]"]
    decoded = Codec("json", Judge(D, 1e150)).decode(values)
    assert decoded.rejects == [
        Reject(0, "undecodable", "entry 1 must be a number, not a boolean"),
        Reject(1, "undecodable", "entry 1 must be a number, not a string"),
        Reject(2, "undecodable", "entry 1 must be a number, not null (missing=impute learns vectors with gaps)"),
    ]
