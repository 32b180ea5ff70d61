"""Packs projected records into the messages that transform writes: one for each record."""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NamedTuple, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from streampca.formats.base import Fields, Writer
from streampca.sources.base import Header, OutgoingFields

ORIGIN = "streampca.transform"
"""Header of outputs, which names the record that the output was made from.

It is a JSON object with the version of the model, and the partition, offset and topic id of the record. As an
optimisation it is a single header: three headers made a member with confluent-kafka a fifth slower.
"""


class ProjectedRecords(NamedTuple):
    """The m records of a batch that get outputs, and the fields that were computed from their n vectors."""

    topic_id: str  # "" if the brokers give topics no ids
    partition: int
    version: int  # of the model
    fields: Fields  # n rows
    counts: NDArray[np.int64]  # (m,), vectors of each record
    keys: Sequence[bytes | None]
    headers: Sequence[Sequence[tuple[str, bytes | None]]]
    offsets: NDArray[np.int64]  # (m,)
    timestamps: NDArray[np.int64]  # (m,), milliseconds since 1970; -1 if unknown


class Packer(Protocol):
    """Packs records into messages."""

    def pack(self, topic: str, projected: ProjectedRecords, max_record_bytes: float) -> Iterable[OutgoingFields]:
        """Return messages to the topic's partition of the same number, each for one or more records.

        The topic takes messages of at most `max_record_bytes`, which may be infinite.
        """


class RecordPacker:
    """Packs each record into a message of its own, with the key, timestamp and headers of the record."""

    def __init__(self, writer: Writer, *, always_lists: bool) -> None:
        """The fields of a record are lists if it has several vectors, or if `always_lists` is set."""
        self._writer = writer
        self._always_lists = always_lists

    def pack(self, topic: str, projected: ProjectedRecords, max_record_bytes: float) -> Iterable[OutgoingFields]:
        """Return a message for each record, with the header `ORIGIN`, which names the record.

        `max_record_bytes` is for packers that join several records. It is not used here: a record cannot be split.
        """
        values = self.write_values(projected.fields, vectors_per_record=projected.counts)
        # `template % offset` is the header's value, such as {"model_version":1,"partition":0,"offset":7,…}.
        template = make_origin_template(projected)
        headers = [
            [*headers_of_record, (ORIGIN, template % offset)]
            for headers_of_record, offset in zip(projected.headers, projected.offsets.tolist(), strict=True)
        ]
        timestamps = projected.timestamps.tolist()
        # Each tuple has the fields of `Outgoing`.
        return zip(repeat(topic), repeat(projected.partition), values, projected.keys, headers, timestamps)

    def write_values(self, fields: Fields, vectors_per_record: NDArray[np.int64]) -> Sequence[bytes]:
        """Return the value of each record; `fields` have a row for each vector.

        The value of a record with one vector is its row. The value of a record with several vectors, or of any record
        if `always_lists` is set, is the list of its rows.
        """
        are_lists = (vectors_per_record > 1) | self._always_lists
        if not are_lists.any():
            return self._writer.write(fields)
        if are_lists.all():
            return self._writer.write(fields, vectors_per_record)
        # A call of the writer returns either lists or single rows.
        is_row_of_list = np.repeat(are_lists, vectors_per_record)
        fields_of_lists = {name: values[is_row_of_list] for name, values in fields.items()}
        fields_of_singles = {name: values[~is_row_of_list] for name, values in fields.items()}
        lists = iter(self._writer.write(fields_of_lists, vectors_per_record[are_lists]))
        singles = iter(self._writer.write(fields_of_singles))
        return [next(lists) if is_list else next(singles) for is_list in are_lists.tolist()]


def make_origin_template(projected: ProjectedRecords) -> bytes:
    """Return a template of the header `ORIGIN`: `template % offset` is the value of the header."""
    fields = (projected.version, projected.partition, projected.topic_id.encode())
    return b'{"model_version":%d,"partition":%d,"offset":%%d,"topic_id":"%s"}' % fields


class Origin(NamedTuple):
    """The record that an output was made from. An Arrow message has several; this is the first."""

    offset: int
    topic_id: str  # "" if the brokers gave the topic no id, or an earlier release has written the output


def parse_origin(value: bytes | None) -> Origin:
    """Parse the value of the header `ORIGIN`. Raises various errors if another program has written it."""
    fields = orjson.loads(value or b"")
    return Origin(int(fields["offset"]), str(fields.get("topic_id", "")))


def read_origin(headers: Sequence[Header]) -> Origin | None:
    """Read the header `ORIGIN`; return None if the record is not an output."""
    values = [value for name, value in headers if name == ORIGIN]
    if not values:
        return None
    try:
        return parse_origin(values[-1])  # a chain of transforms adds a header each time: the last one counts
    except (ValueError, TypeError, KeyError, AttributeError):  # another program has written the header
        return None
