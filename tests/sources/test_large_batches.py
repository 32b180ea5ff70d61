"""Compressed batches are unpacked up to a limit; one record stands for all of a batch that exceeds it."""

import subprocess
import sys
import zlib
from collections.abc import Callable

import lz4.frame
import pytest
import zstandard
from kafka import codec as kafka_codec
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from streampca.sources.kafka_python import decompression
from streampca.sources.kafka_python.decompression import GZIP, LZ4, SNAPPY, ZSTD, BatchTooLargeError, decompress
from streampca.sources.kafka_python.patches.batches import PatchedRecordBatch
from streampca.stream.codec import Codec
from streampca.stream.record import UnreadValue

MIB = 2**20
LIMIT = 64 * MIB
ENCODERS: dict[int, Callable[[bytes], bytes]] = {
    GZIP: kafka_codec.gzip_encode,
    SNAPPY: kafka_codec.snappy_encode,
    LZ4: kafka_codec.lz4_encode,
    ZSTD: kafka_codec.zstd_encode,
}


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(decompression, "_MAX_BYTES", 100_000)
    return 100_000


@pytest.mark.parametrize("codec", ENCODERS)
def test_bytes_within_the_limit_are_unpacked_and_no_more(codec: int, small_limit: int) -> None:
    texts = [b"", b"a", bytes(range(256)) * 300, b"x" * small_limit]
    for text in texts:
        assert bytes(decompress(codec, ENCODERS[codec](text))) == text
    with pytest.raises(BatchTooLargeError):
        decompress(codec, ENCODERS[codec](b"x" * (small_limit + 1)))


def test_snappy_without_framing_too(small_limit: int) -> None:
    packed = kafka_codec.snappy_encode(b"x" * small_limit, xerial_compatible=False)
    assert bytes(decompress(SNAPPY, packed)) == b"x" * small_limit
    with pytest.raises(BatchTooLargeError):
        decompress(SNAPPY, kafka_codec.snappy_encode(b"x" * (small_limit + 1), xerial_compatible=False))


def packed_zeros(codec: int, size: int) -> bytes:
    """So many zeros, compressed."""
    chunks = [bytes(MIB)] * (size // MIB)
    if codec == ZSTD:
        compressor = zstandard.ZstdCompressor().compressobj()
        return b"".join(map(compressor.compress, chunks)) + compressor.flush()
    if codec == GZIP:
        gzip = zlib.compressobj(wbits=31)
        return b"".join(map(gzip.compress, chunks)) + gzip.flush()
    if codec == LZ4:
        return bytes(lz4.frame.compress(bytes(size)))  # says how large it is
    return b"\x80\x80\x80\x80\x04" + b"\x00\x00"  # a snappy block that says that it unpacks to 1 GiB


MEMORY_PROGRAM = """
import resource, sys
from streampca.sources.kafka_python.decompression import BatchTooLargeError, decompress
packed = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(int(sys.argv[1]), packed)
except BatchTooLargeError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow  # whole processes
@pytest.mark.parametrize("codec", ENCODERS)
def test_four_times_the_limit_takes_no_more_memory_than_the_limit_allows(codec: int) -> None:
    packed = packed_zeros(codec, 4 * LIMIT)
    program = [sys.executable, "-c", MEMORY_PROGRAM, str(codec)]
    ended = subprocess.run(program, input=packed, capture_output=True, timeout=60, check=True)
    assert int(ended.stdout) * 1024 < 2.2 * LIMIT


def batch(values: list[bytes], codec: int, base: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 2**30)
    for offset, value in enumerate(values):
        assert builder.append(offset, 1000 + offset, None, value, [])
    built = builder.build()
    return base.to_bytes(8, "big") + bytes(built[8:])


@pytest.mark.parametrize("codec", ENCODERS)
def test_one_record_stands_for_all_of_a_batch_that_is_too_large(codec: int, small_limit: int) -> None:
    large = batch([b"x" * small_limit] * 3, codec, base=50)
    fetched = MemoryRecords(batch([b"a", b"b"], codec, base=48) + large + batch([b"c"], codec, base=53))
    batches = list(fetched)
    assert {type(found) for found in batches} == {PatchedRecordBatch}
    records = [record for found in batches for record in found]
    assert [(record.offset, record.value) for record in records] == [(48, b"a"), (49, b"b"), (52, b""), (53, b"c")]
    assert records[2].timestamp == 1002
    [reject] = Codec("json", 1, 1e9).decode([records[2].value]).rejects
    assert reject.reason == "too_many_bytes"
    assert "3 records, offsets 50 to 52, are in a batch that" in reject.message


@pytest.mark.parametrize("format_", ["float64", "npy", "arrow", "json"])
def test_an_unread_value_is_rejected_by_every_format(format_: str) -> None:
    [reject] = Codec(format_, 1, 1e9).decode([UnreadValue("why")]).rejects
    assert (reject.reason, reject.message) == ("too_many_bytes", "why")
