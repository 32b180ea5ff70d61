"""The file format: deterministic, readable by NumPy, with any damage detected."""

import contextlib
import hashlib
import io
import random
import re
import zipfile
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from streampca.errors import DamagedFileError, NewerFormatError, SettingsError
from streampca.fold import npz
from tests.errors import refusal

HEADER = {"kind": "test", "format_version": 1, "text": "ü", "none": None, "list": [1, 2.5], "nested": {"a": {"b": 1}}}
ARRAYS = {"C": np.arange(12, dtype=np.float64).reshape(4, 3) / 7, "count": np.array(5), "empty": np.zeros((0, 3))}


def same(one: Any, other: Any) -> bool:
    """Equality bit for bit, of dtype and shape too."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def sealed(body: bytes) -> bytes:
    """The bytes with a valid digest."""
    return body + hashlib.sha256(body).hexdigest().encode()


ANY_ARRAY = hnp.arrays(
    dtype=st.one_of(hnp.floating_dtypes(), hnp.integer_dtypes(), hnp.boolean_dtypes()),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
NAMES = st.text("abcdefghijklmnopqrstuvwxyzCSM_", min_size=1, max_size=8).filter(lambda name: name != "header")
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.dictionaries(NAMES, ANY_ARRAY, max_size=4))
def test_decoding_returns_what_was_encoded(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    header |= {"kind": "test", "format_version": 1}
    data = npz.encode(header, arrays)
    header_again, arrays_again = npz.decode(data, "test", 1)
    assert header_again == header
    assert list(arrays_again) == list(arrays)
    assert all(same(arrays_again[name], array) for name, array in arrays.items())
    assert npz.encode(header, arrays) == data


def test_neither_the_memory_order_of_an_array_nor_the_order_of_the_header_changes_the_bytes() -> None:
    square = np.arange(9.0).reshape(3, 3)
    assert npz.encode(HEADER, {"a": np.asfortranarray(square)}) == npz.encode(HEADER, {"a": square})
    assert npz.encode(HEADER, {"a": np.repeat(square, 2, axis=0)[::2]}) == npz.encode(HEADER, {"a": square})
    assert npz.encode(dict(reversed(HEADER.items())), ARRAYS) == npz.encode(HEADER, ARRAYS)


def test_the_header_may_contain_numpy_numbers() -> None:
    header, _ = npz.decode(npz.encode({**HEADER, "loss": np.float64(0.1), "n": np.int64(3)}, {}), "test", 1)
    assert (header["loss"], header["n"]) == (0.1, 3)


def test_numpy_can_load_the_file() -> None:
    with np.load(io.BytesIO(npz.encode(HEADER, ARRAYS)), allow_pickle=False) as members:
        assert sorted(members.files) == ["C", "count", "empty", "header"]
        assert same(members["C"], ARRAYS["C"])
        assert orjson.loads(members["header"].tobytes()) == HEADER


def test_arrays_of_objects_are_refused() -> None:
    assert "allow_pickle" in refusal(ValueError, npz.encode, HEADER, {"a": np.array([{}], dtype=object)})


DATA = npz.encode(HEADER, ARRAYS)


def test_any_changed_byte_is_detected() -> None:
    rng = random.Random(1)
    for position in range(len(DATA)):
        for flip in (1 << rng.randrange(8), rng.randrange(1, 256), 0x20):
            damaged = bytearray(DATA)
            damaged[position] ^= flip
            refusal(DamagedFileError, npz.decode, bytes(damaged), "test", 1)


def test_any_truncation_and_any_lost_or_repeated_byte_is_detected() -> None:
    damaged = [DATA[:length] for length in range(len(DATA))] + [DATA + b"\0", DATA + DATA]
    damaged += [DATA[:position] + DATA[position + 1 :] for position in range(len(DATA))]
    damaged += [DATA[: position + 1] + DATA[position:] for position in range(len(DATA))]
    for data in damaged:
        refusal(DamagedFileError, npz.decode, data, "test", 1)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    for some in (data, sealed(data)):
        refusal(DamagedFileError, npz.decode, some, "test", 1)


def test_damage_with_a_valid_digest_raises_nothing_but_a_damaged_file_error() -> None:
    """Errors of zipfile and NumPy become DamagedFileError."""
    rng, body = random.Random(2), DATA[:-64]
    assert sealed(body) == DATA
    for _ in range(3000):
        damaged = bytearray(body)
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        with contextlib.suppress(DamagedFileError):
            npz.decode(sealed(bytes(damaged)), "test", 1)


def file_with(header: bytes, save: Any = np.savez) -> bytes:
    buffer = io.BytesIO()
    save(buffer, header=np.frombuffer(header, np.uint8))
    with zipfile.ZipFile(buffer, "a") as zipped:
        zipped.comment = b"0" * 64
    return sealed(buffer.getvalue()[:-64])


def by_numpy(make: Any) -> bytes:
    buffer = io.BytesIO()
    make(buffer, np.zeros(3))
    return buffer.getvalue()


PLAIN = b'{"kind": "test", "format_version": 1}'


@pytest.mark.parametrize(
    ("data", "kind", "version", "error", "words"),
    [
        *((file_with(text), "test", 1, DamagedFileError, "not a streampca file")
          for text in (b"[]", b"3", b"null", b"{", b"\xff", b'"kind"')),
        *((seal(by_numpy(make)), "test", 1, DamagedFileError, "")
          for make in (np.save, np.savez) for seal in (bytes, sealed)),
        (file_with(PLAIN, np.savez_compressed), "test", 1, DamagedFileError, "a member is compressed"),
        (DATA, "model", 1, DamagedFileError, "this is a test file, not a model file"),
        (npz.encode(HEADER | {"format_version": 0}, {}), "test", 1, DamagedFileError,
         "format version 0 of this test file is not 1"),
        (DATA, "test", 2, SettingsError, "an earlier release has written this test.*another store folder"),
        (npz.encode(HEADER | {"format_version": 2}, {}), "test", 1, NewerFormatError,
         "a newer release has written this test file.*nothing is damaged"),
    ],
)  # fmt: skip
def test_foreign_files_are_refused_and_other_kinds_and_releases_are_named(
    data: bytes, kind: str, version: int, error: type[Exception], words: str
) -> None:
    """A compressed one before it is unpacked."""
    assert npz.decode(file_with(PLAIN), "test", 1)[1] == {}
    assert re.search(words, refusal(error, npz.decode, data, kind, version))
