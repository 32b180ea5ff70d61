"""The size that a broker compares with a topic's `max.message.bytes`: that of a batch with this record alone.

A length has 1 to 5 bytes, since Kafka writes small numbers in fewer bytes.
"""

from streampca.formats.layout import varint
from streampca.sources.base import Headers
from streampca.sources.record_times import ORIGINAL_TIMESTAMP_HEADER

_BATCH_HEADER = 61  # bytes of a batch before its records
_FIXED_FIELDS = 3  # bytes of a record: attributes, and the differences to the batch's time and offset, which are 0


def record_size(value: bytes | None, key: bytes | None, headers: Headers) -> int:
    """Return the size in bytes of an uncompressed batch of this record.

    `ORIGINAL_TIMESTAMP_HEADER` is not counted, so an output has the same size before and after this header is added.
    """
    counted_headers = [(name, content) for name, content in headers if name != ORIGINAL_TIMESTAMP_HEADER]
    record_bytes = _FIXED_FIELDS + _field_size(key) + _field_size(value) + _length_size(len(counted_headers))
    for name, content in counted_headers:
        record_bytes += _field_size(name.encode()) + _field_size(content)
    return _BATCH_HEADER + _length_size(record_bytes) + record_bytes


def _field_size(data: bytes | None) -> int:
    """Return how many bytes a field has, with the length before it. None is written as the length −1."""
    return 1 if data is None else _length_size(len(data)) + len(data)


def _length_size(length: int) -> int:
    """Return in how many bytes Kafka writes a length: as a varint in zigzag encoding."""
    zigzag = 2 * length
    return len(varint(zigzag))
