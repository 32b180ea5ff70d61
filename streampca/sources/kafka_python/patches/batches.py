"""Batches of records, as a broker sends them.

`kafka.record.memory_records.DefaultRecordBatch`
    A record with a header whose name is not UTF-8 makes its whole batch a corrupt one, for ever: such names are read
    with surrogate escapes, and written as the same bytes. A compressed batch is unpacked whatever its size: beyond a
    limit, one record stands for all of its records.
"""

from typing import Any

from kafka.record import memory_records
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch

from streampca.sources.kafka_python.decompression import BatchTooLargeError, decompress
from streampca.stream.record import UnreadValue


class RawName(str):
    """A header's name of any bytes: those that are not UTF-8 are surrogate escapes, and are written as they were."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> bytes:
        return super().encode(encoding, "surrogateescape")


class _RawBytes(bytearray):
    """Bytes whose slices are decoded as `RawName`."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return _RawBytes(found) if isinstance(place, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> str:
        return RawName(super().decode(encoding, "surrogateescape"))


class PatchedRecordBatch(DefaultRecordBatch):  # type: ignore[misc]
    """A batch whose headers may have names of any bytes, and that is unpacked only up to a limit."""

    _buffer: Any
    _pos: int
    _decompressed: bool

    def _maybe_uncompress(self) -> None:
        if self._decompressed or self.compression_type == self.CODEC_NONE:
            super()._maybe_uncompress()
            return
        self._assert_has_codec(self.compression_type)
        packed, self._pos, self._decompressed = bytes(memoryview(self._buffer)[self._pos :]), 0, True
        try:
            self._buffer = decompress(self.compression_type, packed)
        except BatchTooLargeError as error:
            self._buffer, self._num_records, self._too_large = bytearray(), 1, str(error)
            self._read_msg = self._unread_record  # type: ignore[method-assign]

    def _unread_record(self) -> Any:
        """A record in place of all, at the last offset: it comes again from wherever reading resumes."""
        count, first, last = self.records_count, self.base_offset, self.last_offset
        value = UnreadValue(f"{count} records, offsets {first} to {last}, are in a batch that {self._too_large}")
        return DefaultRecord(0, self.last_offset, self.max_timestamp, self.timestamp_type, None, value, [])

    def _read_msg(self, *args: Any) -> Any:
        try:
            return super()._read_msg(*args)
        except UnicodeDecodeError:
            self._buffer = _RawBytes(self._buffer)  # for all its records: copying it for each would take long
            return super()._read_msg(*args)


memory_records.DefaultRecordBatch = PatchedRecordBatch
