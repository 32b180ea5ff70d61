"""Decompresses Kafka's record batches up to a limit: a few kilobytes may unpack to gibibytes.

The libraries are imported when a batch needs them; the caller has checked that they are installed.
"""

import zlib
from collections.abc import Iterable, Iterator

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4  # Kafka's numbers of the codecs
_GZIP_FORMAT = 31  # to zlib
_LZ4_RATIO = 255  # the best that the format can do
_STEP = 2**20  # bytes
_MAX_BYTES = 64 * 2**20  # of an unpacked batch: far above what producers send
_XERIAL = b"\x82SNAPPY\x00"  # the magic number of snappy-java's framing, which most clients write
_XERIAL_HEADER = 16


class BatchTooLargeError(Exception):
    """The batch unpacks to more than the limit."""


def decompress(codec: int, data: bytes) -> bytes | bytearray:
    """The unpacked bytes; takes little more memory than the limit.

    Raises `BatchTooLargeError`, and what the libraries raise for damaged data.
    """
    if codec == LZ4:
        return _lz4(data)
    if codec == GZIP:
        return _within(zlib.decompressobj(_GZIP_FORMAT).decompress(data, _MAX_BYTES + 1))
    return _joined(_zstd_parts(data) if codec == ZSTD else _snappy_blocks(data))


def _lz4(data: bytes) -> bytes | bytearray:
    import lz4.frame as frames

    small = len(data) * _LZ4_RATIO <= _MAX_BYTES and frames.get_frame_info(data)["content_size"] <= _MAX_BYTES
    unpacked: bytes = (
        frames.decompress(data)  # faster
        if small
        else frames.LZ4FrameDecompressor().decompress(data, max_length=_MAX_BYTES + 1)
    )
    return _within(unpacked)


def _within(unpacked: bytes | bytearray) -> bytes | bytearray:
    if len(unpacked) > _MAX_BYTES:
        raise BatchTooLargeError(f"unpacks to more than {_MAX_BYTES / 2**20:g} MiB")
    return unpacked


def _joined(parts: Iterable[bytes]) -> bytes | bytearray:
    joined = bytearray()
    for part in parts:
        joined += part
        _within(joined)
    return joined


def _zstd_parts(data: bytes) -> Iterator[bytes]:
    import zstandard

    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        while part := reader.read(_STEP):
            yield part


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    """Each block says its unpacked length first, so nothing is unpacked that exceeds the limit."""
    import snappy

    for block in _blocks(data):
        if _length(block) > _MAX_BYTES:
            raise BatchTooLargeError(f"says that it unpacks to {_length(block) / 2**20:g} MiB")
        yield snappy.decompress(block)


def _blocks(data: bytes) -> Iterator[bytes]:
    if not data.startswith(_XERIAL):
        yield data
        return
    at = _XERIAL_HEADER
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        yield data[at + 4 : end]
        at = end


def _length(block: bytes) -> int:
    """The varint at the start of a snappy block."""
    length = 0
    for place, byte in enumerate(block[:5]):
        length |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    return length
