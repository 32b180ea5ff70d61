"""Decoding bytes to vectors: each format against an independent encoder; each value is decoded or rejected as alone."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from streampca.formats.codec import REASONS, Codec
from streampca.formats.record import Decoded, Reject
from streampca.pca.learning import LearningConfig
from tests.formats.structured import (
    ARRAY,
    FORMATS,
    ROW,
    SINGLES,
    WIDE,
    D,
    arrow,
    avro,
    avro_datum,
    avro_schema,
    codec,
    encoded,
    framed,
    header_of,
    memory,
    npy,
    npy_of,
    only_reject,
    protobuf,
    reading,
    readings,
    skipped_in,
    zeros,
)


@settings(deadline=None)
@given(batch=st.lists(SINGLES, max_size=6), dtype=st.sampled_from(["float32", "float64"]))
@pytest.mark.parametrize("kind", FORMATS)
def test_decoding_returns_the_encoded_vectors(kind: str, batch: list[list[float]], dtype: str) -> None:
    decoded = codec(kind, dtype=dtype).decode([encoded(kind, row) for row in batch])
    assert decoded.vectors.dtype == dtype
    assert (decoded.indices.tolist(), decoded.rejects) == (list(range(len(batch))), [])
    np.testing.assert_array_equal(decoded.vectors, np.array(batch, dtype).reshape(-1, D))


def decode_together_and_alone(decoder: Codec, values: Sequence[bytes | None]) -> Decoded:
    """Decode values in a batch. Each is decoded or rejected as it is in a batch of its own; the numbers are finite."""
    together = decoder.decode(values)
    alone = [decoder.decode([value]) for value in values]
    rejects = [replace(reject, index=index) for index, single in enumerate(alone) for reject in single.rejects]
    assert together.vectors.tobytes() == b"".join(single.vectors.tobytes() for single in alone)
    assert together.rejects == rejects
    assert np.isfinite(together.vectors).all()
    return together


SOME_BYTES = st.one_of(
    st.none(),
    st.binary(max_size=60),
    SINGLES.map(lambda row: json.dumps(row).encode()),
    SINGLES.map(lambda row: encoded("float32", row)),
    SINGLES.map(lambda row: encoded("float64", row)),
    SINGLES.map(lambda row: npy(np.array(row))),
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
    decoder = codec(kind, dtype=dtype, largest_value=LearningConfig(D, 1, dtype=dtype).largest_value)
    decoded = decode_together_and_alone(decoder, values)
    rejected = [reject.index for reject in decoded.rejects]
    assert sorted([*decoded.indices.tolist(), *rejected, *skipped_in(decoded)]) == list(range(len(values)))
    assert skipped_in(decoded) == [
        i for i, value in enumerate(values) if value is None or (kind, value) == ("json", b"null")
    ]
    assert decoded.indices.tolist() == sorted(decoded.indices.tolist())
    assert rejected == sorted(rejected)
    assert {reject.reason for reject in decoded.rejects} <= set(REASONS)
    assert (decoded.vectors.shape, decoded.vectors.dtype) == ((len(decoded.indices), D), dtype)
    assert (np.abs(decoded.vectors.astype(np.float64)) <= decoder.judge.largest_value).all()


GOOD = avro_schema(ARRAY, "v")
PIECES = [b"\xff" * 4, b"\x80" * 12, b"\x7f\xff\xff\xff", bytes(50)]

KINDS: dict[str, tuple[Callable[[], Codec], bytes]] = {
    "avro": (lambda: codec("avro", "v", memory(GOOD)), avro(GOOD, avro_datum(ROW, "v"))),
    "protobuf": (lambda: readings("doubles"), protobuf(reading(doubles=ROW, sensor="x"))),
    "arrow": (lambda: codec("arrow", "v"), arrow([ROW, ROW])),
    "arrow, compressed": (lambda: codec("arrow", "v", d=WIDE), zeros(200)),
}


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
@pytest.mark.parametrize("kind", KINDS)
def test_corrupted_values_are_decoded_or_rejected_without_an_exception(kind: str, seed: int) -> None:
    make, good = KINDS[kind]
    rng, values = random.Random(seed), []
    for _ in range(4):
        data = bytearray(good)
        for _ in range(rng.randint(0, 3)):
            at = rng.randrange(5 if "arrow" not in kind and rng.random() < 0.9 else 0, len(data))
            data[at : at + rng.randint(0, 2)] = rng.choice([rng.randbytes(rng.randint(0, 2))] * 9 + PIECES)
        values.append(bytes(data[: rng.choice([None, None, rng.randrange(len(data))])]))
    together = decode_together_and_alone(make(), values)
    assert together.counts.sum() == len(together.vectors)


@pytest.mark.parametrize("kind", ["json", "npy", "avro", "protobuf"])
def test_a_value_may_have_8_mib_beside_its_numbers(kind: str) -> None:
    limit = 8 * 2**20 + 32 * D
    decoder = codec(kind, "" if kind == "npy" else "v", memory())
    assert only_reject(decoder.decode([framed(1, bytes(limit - 5))]))[0] != "too_many_bytes"
    assert only_reject(decoder.decode([framed(1, bytes(limit - 4))]))[0] == "too_many_bytes"


def test_an_unexpected_error_rejects_its_record_only(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = codec()

    def read(value: bytes) -> bytes:
        if value == b"odd":
            raise ZeroDivisionError("by \ud800")
        return bytes(8 * D)

    monkeypatch.setattr(decoder._reader, "read", read)
    decoded = decoder.decode([b"good", b"odd", b"good"])
    assert decoded.indices.tolist() == [0, 2]
    assert decoded.rejects == [Reject(1, "undecodable", "it cannot be decoded (ZeroDivisionError)")]
