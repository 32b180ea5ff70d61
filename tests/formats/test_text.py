"""Texts that hold vectors, as libraries write them: in records and in cells."""

import base64
import json
import textwrap
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, strategies as st

from streampca.formats.errors import VectorError
from streampca.formats.text import decode_text
from tests.formats.structured import assert_rejected, codec, only_reject

finite = st.floats(-1e100, 1e100)
rows = st.lists(finite, min_size=1, max_size=40)

ENCODERS: dict[str, Callable[[bytes], str]] = {
    "plain": lambda data: base64.b64encode(data).decode(),
    "MIME": lambda data: base64.encodebytes(data).decode(),
    "wrapped, CRLF": lambda data: "\r\n".join(textwrap.wrap(base64.b64encode(data).decode(), 64)),
    "URL-safe": lambda data: base64.urlsafe_b64encode(data).decode(),
    "unpadded": lambda data: base64.b64encode(data).decode().rstrip("="),
    "URL-safe, unpadded": lambda data: base64.urlsafe_b64encode(data).decode().rstrip("="),
}


@given(rows, st.sampled_from(["<f4", "<f8"]), st.sampled_from(sorted(ENCODERS)))
def test_base64_of_each_kind_is_the_bytes(row: list[float], kind: str, encoder: str) -> None:
    data = np.clip(row, -1e30, 1e30).astype(kind).tobytes()
    assert decode_text(ENCODERS[encoder](data)) == data


@given(rows)
def test_the_text_of_an_array_is_the_array(row: list[float]) -> None:
    numpys = np.array2string(np.array(row), threshold=100, floatmode="unique")
    postgres = "{" + ",".join(map(repr, row)) + "}"
    for text in (json.dumps(row), str(row), numpys, postgres, f" {postgres}\n"):
        assert decode_text(text) == row, text


@pytest.mark.parametrize("text", ["[1.0, nan, 3.0]", "[1. nan 3.]", "{1,NULL,3}", "[1, null, 3]", "[1, NaN, 3]"])
def test_an_entry_of_a_text_may_be_missing(text: str) -> None:
    decoded = codec("json", "v", min_observed=1).decode([json.dumps({"v": text}).encode()])
    np.testing.assert_array_equal(decoded.vectors, [[1, np.nan, 3]])


@pytest.mark.parametrize(
    "text",
    ["[1. 2. ... 8. 9.]", "[1, 2", "{1,2", "[1,,2]", "{1,2,}", "[1 2, 3]", "{a,b}", "{1 2]", "1 2 3", "1,2,3", "abc",
     "order_17", "1234 5678 9012 3456", "12\n34\n56\n78", "the quick brown fox", "{", "[", "[[1. 2.]\n [3. 4.]]"],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(VectorError, match="not a string: it is neither base64"):
        decode_text(text)


@pytest.mark.parametrize("text", ["{1:0.5,3:2}/5", "{}/5", "{1:-1e-3}/768"])
def test_the_text_of_a_sparse_vector_is_refused_as_sparse(text: str) -> None:
    assert_rejected(codec("json", "v").decode([json.dumps({"v": text}).encode()]), "undecodable", "sparse")


@given(st.text())
def test_any_text_is_decoded_or_refused(text: str) -> None:
    with suppress(VectorError):
        assert isinstance(decode_text(text), list | bytes)


def test_a_text_that_is_too_short_says_how_many_bytes_it_has() -> None:
    text = base64.b64encode(np.zeros(2).tobytes()).decode()
    assert "16 bytes are not 3 numbers" in only_reject(codec("json", "v").decode([json.dumps({"v": text}).encode()]))[1]
