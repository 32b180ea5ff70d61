"""Values that are too large, before they are decoded or once they are unpacked, are rejected."""

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streampca.fold.codec import Codec
from streampca.fold.events import Records, Undecoded
from streampca.fold.judge import Judge
from streampca.fold.record import PlainRecord
from tests.fold.structured import framed, memory

D = 8
MIB = 2**20


def zeros(rows: int, compression: str | None = "zstd", batches: int = 1, dtype: str = "f8") -> bytes:
    """An Arrow IPC stream of equal batches of zeros."""
    column = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * D, dtype)), D)
    return stream(column, compression, batches)


def stream(column: Any, compression: str | None = None, batches: int = 1) -> bytes:
    out, batch = io.BytesIO(), pa.record_batch([column], ["v"])
    with pa.ipc.new_stream(out, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for _ in range(batches):
            writer.write_batch(batch)
    return out.getvalue()


def reason(value: bytes, kind: str = "arrow") -> str:
    """The reason for which the value is rejected; empty if it is not."""
    field, schemas = ("" if kind == "npy" else "v"), memory() if kind in ("avro", "protobuf") else None
    rejects = Codec(kind, Judge(D, 1e150), field, schemas).decode([value]).rejects
    return rejects[0].reason if rejects else ""


@pytest.mark.parametrize("kind", ["json", "npy", "avro", "protobuf"])
def test_a_value_may_have_8_mib_beside_its_numbers(kind: str) -> None:
    limit = 8 * MIB + 32 * D
    assert reason(framed(1, bytes(limit - 5)), kind) not in ("", "too_many_bytes")
    assert reason(framed(1, bytes(limit - 4)), kind) == "too_many_bytes"


def test_json_of_many_numbers_is_learned() -> None:
    d = 300_000
    text = str(np.random.default_rng(0).standard_normal(d).tolist()).encode()
    assert Codec("json", Judge(d, 1e150)).decode([text]).rejects == []
    assert len(text) > 5 * MIB


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
@pytest.mark.parametrize("dtype", ["f8", "i1"])  # of a byte, which becomes eight
def test_arrow_is_learned_up_to_64_mib(compression: str | None, dtype: str) -> None:
    row = D * (8 + np.dtype(dtype).itemsize)
    batches, most = 8, 64 * MIB // row // 8
    assert reason(zeros(most, compression, batches, dtype)) == ""
    assert reason(zeros(most + 1, compression, batches, dtype)) == "too_many_bytes"


def test_arrow_beyond_64_mib_is_not_decoded() -> None:
    assert reason(bytes(64 * MIB)) == "undecodable"
    assert reason(bytes(64 * MIB + 1)) == "too_many_bytes"


def test_arrow_lists_of_no_numbers() -> None:
    """Two billion of them are a short value."""
    kind = pa.list_(pa.float64(), 0)
    column = pa.Array.from_buffers(kind, 2**31 - 1, [None], children=[pa.array([], pa.float64())])
    assert reason(stream(column)) == "too_many_bytes"


def test_arrow_with_any_bit_flipped() -> None:
    value, rng, ends = zeros(200), np.random.default_rng(1), set()
    for at in rng.integers(0, len(value), 300):
        changed = bytearray(value)
        changed[at] ^= 1 << int(rng.integers(8))
        ends.add(reason(bytes(changed)))
    assert {"", "undecodable"} <= ends


def test_the_vectors_of_one_event_are_decoded_in_steps() -> None:
    """Each record is within the limit; a hundred of them together are not."""
    value = zeros(MIB // D // 2)  # 4 MiB
    records = [PlainRecord(offset, value, timestamp=offset) for offset in (3, 4, 6, 7, 9)]
    decoder, offsets, event = Codec("arrow", Judge(D, 1e150), "v"), [], Records(0, records, 12, 20)
    while event.records:
        vectors = decoder.vectors_of(event)
        assert not isinstance(vectors, Undecoded)
        assert vectors.decoded.vectors.nbytes <= 8 * MIB
        assert len(vectors.timestamps) == len(vectors.records)
        offsets += [record.offset for record in vectors.records]
        rest = event.records[len(vectors.records) :]
        assert vectors.next == (rest[0].offset if rest else 12)
        event = Records(0, rest, 12, 20)
    assert offsets == [3, 4, 6, 7, 9]
