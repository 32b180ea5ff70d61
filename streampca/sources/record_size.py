"""The size of a record as a broker compares it with its topic's `max.message.bytes`: that of a batch of it alone."""

from streampca.formats.layout import varint
from streampca.sources.base import Headers
from streampca.sources.record_times import HEADER

_AROUND = 61  # bytes of a batch before its records
_FIXED = 3  # attributes, and the differences to the batch's time and offset, which are zero


def record_size(value: bytes | None, key: bytes | None, headers: Headers) -> int:
    """The bytes of an uncompressed record, without the header that sending may add (`record_times`)."""
    own = [header for header in headers if header[0] != HEADER]
    fields = [key, value, *(part for name, content in own for part in (name.encode(), content))]
    record = _FIXED + len(varint(2 * len(own))) + sum(map(_field_size, fields))
    return _AROUND + len(varint(2 * record)) + record


def _field_size(data: bytes | None) -> int:
    """The bytes of a field behind its length; -1 stands for None."""
    return 1 if data is None else len(varint(2 * len(data))) + len(data)
