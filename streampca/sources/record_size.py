"""The size of a record as a broker compares it with its topic's `max.message.bytes`: that of a batch of it alone."""

from streampca.formats.layout import varint
from streampca.sources.base import Headers
from streampca.sources.record_times import HEADER

_BATCH_HEADER = 61  # bytes of a batch before its records
_FIXED_FIELDS = 3  # bytes of a record: attributes, and the differences to the batch's time and offset, which are 0


def record_size(value: bytes | None, key: bytes | None, headers: Headers) -> int:
    """Return the bytes of an uncompressed record, without the header that sending may add (`record_times`)."""
    headers = [header for header in headers if header[0] != HEADER]
    size = _FIXED_FIELDS + _field_size(key) + _field_size(value) + _length_size(len(headers))
    for name, content in headers:
        size += _field_size(name.encode()) + _field_size(content)
    return _BATCH_HEADER + _length_size(size) + size


def _field_size(data: bytes | None) -> int:
    """Return the bytes of a field and of the length before it; None has only a length, -1, in one byte."""
    return 1 if data is None else _length_size(len(data)) + len(data)


def _length_size(length: int) -> int:
    """Return the bytes of a length that is not negative: Kafka writes signed numbers, of which zigzag doubles these."""
    return len(varint(2 * length))
