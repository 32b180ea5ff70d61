"""How much memory an Arrow IPC stream takes when it is decompressed, computed without decompressing it.

The metadata of a record batch or dictionary batch is a flatbuffer with the place of each buffer in the batch's body. A
compressed buffer begins with its decompressed size, and Arrow allocates as much; so the sum bounds the memory. Buffers
that overlap count as often as they occur, because Arrow may copy each (to align it, for example).
"""

import struct
from typing import Any

import numpy as np
import pyarrow as pa

_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_OLD_COMPRESSION = b"ARROW:experimental_compression"  # its name before the format had a field for it
_PREFIX = struct.Struct("<q")
_NOT_COMPRESSED = -1  # in place of a size


def decompressed_bytes(value: bytes) -> int:
    """The sum of all buffers of a stream. Raises Arrow's errors, and others if the metadata are invalid."""
    return sum(_bytes_of(message) for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(value)))


def _bytes_of(message: Any) -> int:
    metadata = bytes(message.metadata)
    root = _Table(metadata, struct.unpack_from("<I", metadata)[0])
    kind, batch = root.byte(1), root.table(2)
    if batch is None or kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return 0
    if kind == _DICTIONARY_BATCH:
        batch = batch.table(1)
    buffers = np.zeros((0, 2), np.int64) if batch is None else batch.pairs(2)
    if batch is None or (batch.table(3) is None and _OLD_COMPRESSION not in metadata):
        return sum(buffers[:, 1].tolist())
    return sum(_decompressed(message.body, *buffer) for buffer in buffers.tolist() if buffer[1] > 0)


def _decompressed(body: Any, start: int, length: int) -> int:
    if start < 0 or start + length > body.size or length < _PREFIX.size:
        raise ValueError("a buffer lies outside its batch")
    size: int = _PREFIX.unpack_from(body, start)[0]
    if size < _NOT_COMPRESSED:
        raise ValueError("a buffer has a negative size")
    return length if size == _NOT_COMPRESSED else size


class _Table:
    """A table of a flatbuffer, whose fields are found by their number in the schema. Arrow has verified it."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data, self._start = data, start
        self._fields = start - struct.unpack_from("<i", data, start)[0]
        self._fields_size = struct.unpack_from("<H", data, self._fields)[0]

    def byte(self, field: int) -> int:
        place = self._place(field)
        return self._data[place] if place else 0

    def table(self, field: int) -> "_Table | None":
        place = self._place(field)
        return _Table(self._data, self._target(place)) if place else None

    def pairs(self, field: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """A vector of structures of two long integers."""
        place = self._place(field)
        if not place:
            return np.zeros((0, 2), np.int64)
        start = self._target(place)
        count = struct.unpack_from("<I", self._data, start)[0]
        return np.frombuffer(self._data, "<i8", 2 * count, start + 4).reshape(-1, 2)

    def _place(self, field: int) -> int:
        entry = 4 + 2 * field
        offset = struct.unpack_from("<H", self._data, self._fields + entry)[0] if entry < self._fields_size else 0
        return self._start + int(offset) if offset else 0

    def _target(self, place: int) -> int:
        return place + int(struct.unpack_from("<I", self._data, place)[0])
