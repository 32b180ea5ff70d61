"""The messages that are written: one for each record that was read, or one for many of them."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from streampca.errors import SourceError
from streampca.fold.model_file import PublishedModel
from streampca.formats.base import Fields, Writer
from streampca.formats.codec import Codec
from streampca.formats.record import LastRecord, Record, Reject, headers_of, keys_of, offsets_of, values_of
from streampca.sources.base import Outgoing, OutgoingFields
from streampca.sources.dead_letters import dead_letter_headers
from streampca.sources.events import Vectors
from streampca.sources.record_size import record_size
from streampca.transform.models import CurrentModel
from streampca.transform.output_fields import OutputFields

T = TypeVar("T")

_VALUE: Final = 2  # its index in the fields
OUTPUT_TOO_LARGE = "output_too_large"
_OPTION = "max.message.bytes"  # of a topic

ORIGIN = "streampca.transform"
"""Header of outputs: the version of the model, and where the record was read, as JSON.

It is one header, since three of them made a member with confluent-kafka a fifth slower.
"""


class Selection(NamedTuple):
    """The m records of a batch that are written, and what was computed of their n vectors."""

    partition: int
    version: int  # of the model
    fields: Fields
    counts: NDArray[np.int64]  # (m,), vectors of each
    keys: Sequence[bytes | None]
    headers: Sequence[Sequence[tuple[str, bytes | None]]]
    offsets: NDArray[np.int64]  # (m,)
    timestamps: NDArray[np.int64]  # (m,), milliseconds since 1970; -1 if unknown


class Packer(Protocol):
    """Packs records into messages."""

    def messages(self, topic: str, selection: Selection, most_bytes: float = math.inf) -> Iterable[OutgoingFields]:
        """The messages of one or more records, to the partition of the same number, which takes so many bytes."""


class RecordPacker:
    """A message for each record, with its key, timestamp and headers."""

    def __init__(self, writer: Writer, *, batches: bool) -> None:
        """The output of several vectors is lists; with `batches`, also that of one."""
        self._writer, self._batches = writer, batches

    def messages(self, topic: str, selection: Selection, most_bytes: float = math.inf) -> Iterable[OutgoingFields]:
        values = self.values(selection.fields, selection.counts)
        origin = origin_at(selection.version, selection.partition)
        headers = [
            [*own, (ORIGIN, origin % offset)]
            for own, offset in zip(selection.headers, selection.offsets.tolist(), strict=True)
        ]
        timestamps = selection.timestamps.tolist()
        return zip(repeat(topic), repeat(selection.partition), values, selection.keys, headers, timestamps)

    def values(self, fields: Fields, counts: NDArray[np.int64]) -> Sequence[bytes]:
        """A value for each record, which has `counts` (m,) of the rows of fields."""
        are_lists = (counts > 1) | self._batches
        if not are_lists.any():
            return self._writer.write(fields)
        if are_lists.all():
            return self._writer.write(fields, counts)
        rows = np.repeat(are_lists, counts)
        lists = iter(self._writer.write({name: values[rows] for name, values in fields.items()}, counts[are_lists]))
        others = iter(self._writer.write({name: values[~rows] for name, values in fields.items()}))
        return [next(lists if is_list else others) for is_list in are_lists.tolist()]


def origin_at(version: int, partition: int) -> bytes:
    """The value of the header `ORIGIN`, to be formatted with the offset."""
    return b'{"model_version":%d,"partition":%d,"offset":%%d}' % (version, partition)


class TransformedBatch(NamedTuple):
    """The outputs of a batch by this version of the model."""

    # Without records and vectors, unless some records are rejected: the next ones then lie in the same memory, which
    # the processor's cache still holds.
    batch: Vectors
    records: int  # that the batch had
    last: LastRecord | None  # of these
    outputs: list[OutgoingFields]
    written: int  # records that the outputs hold
    version: int


@dataclass(frozen=True)
class Outputs:
    """How records become outputs in the partition of the same number."""

    topic: str
    codec: Codec
    model: CurrentModel
    output_fields: OutputFields  # with p if `only_p_below` is set
    packer: Packer
    source_topic: str
    dead_letter_topic: str | None = None
    only_p_below: float | None = None  # leave out records whose vectors all have a p-value of this or more

    def project(self, published: PublishedModel, limit: "OutputLimit", event: Vectors) -> TransformedBatch:
        """Project decoded records with a model; outputs beyond the limit are rejects. Any thread may call it."""
        outputs, written = self._of(published, limit, event)
        if too_large := limit.exceeded_by(self.topic, outputs):
            return self.project(published, limit, event.reject(OUTPUT_TOO_LARGE, too_large))
        kept = event
        if not event.decoded.rejects:
            kept = replace(event, decoded=event.decoded._replace(vectors=np.zeros((0, 0))), records=())
        return TransformedBatch(kept, len(event.records), event.last, outputs, written, published.version)

    def _of(self, published: PublishedModel, limit: "OutputLimit", event: Vectors) -> tuple[list[OutgoingFields], int]:
        """The outputs of the records that hold vectors, and how many records they hold."""
        vectors, indices, _, counts, _ = event.decoded
        if not len(indices):
            return [], 0
        offsets, timestamps = offsets_of(event.records)[indices], event.timestamps
        in_batches = (counts > 1) | self.codec.is_batch
        fields = self.output_fields.of_records(published, vectors, offsets, counts, in_batches)
        if self.only_p_below is not None:
            below = np.logical_or.reduceat(fields["p"] < self.only_p_below, np.cumsum(counts) - counts)
            fields = {name: values[np.repeat(below, counts)] for name, values in fields.items()}
            indices, counts, offsets, timestamps = indices[below], counts[below], offsets[below], timestamps[below]
            if not len(indices):
                return [], 0
        if "record" in self.output_fields.kinds:
            fields = {**fields, "record": _once(_chosen(values_of(event.records), indices), counts)}
        fields = {name: fields[name] for name in self.output_fields.kinds}
        keys, headers = _chosen(keys_of(event.records), indices), _chosen(headers_of(event.records), indices)
        selection = Selection(event.partition, published.version, fields, counts, keys, headers, offsets, timestamps)
        return list(self.packer.messages(self.topic, selection, limit.most)), len(keys)

    def dead_letter(self, partition: int, record: Record, reject: Reject) -> Outgoing:
        """A record that cannot be projected. Raises `ValueError` without a dead-letter topic."""
        if self.dead_letter_topic is None:
            raise ValueError("dead_letter_topic is not set")
        headers = dead_letter_headers(self.source_topic, partition, record, reject.reason, reject.message)
        return Outgoing(self.dead_letter_topic, None, record.value, record.key, headers, timestamp=-1)


def refuse_too_few(topic: str, count: int, source_topic: str, partitions: Collection[int]) -> None:
    """Raise `SourceError` unless an output topic with `count` partitions has these of the source topic."""
    if max(partitions, default=-1) >= count:
        raise SourceError(
            f"{topic} has {count} partitions, fewer than {source_topic}: add some, since each partition is written to "
            "the one of the same number, to keep the order"
        )


@dataclass(frozen=True)
class OutputLimit:
    """The largest record that the output topic takes, as far as its options and its brokers' refusals say."""

    most: float = math.inf  # bytes
    by_options: float = math.inf  # bytes, by the topic's options alone
    was_refused: bool = False  # then all outputs are measured: those with small values may have large headers or keys

    def configured(self, configs: Mapping[str, str]) -> "OutputLimit":
        """The limit by the topic's options, if they are known; earlier refusals count until the options change."""
        by_options = float(configs.get(_OPTION, self.by_options))
        if by_options == self.by_options:
            return self
        return replace(self, most=by_options, by_options=by_options)

    def after_refusal(self, size: int) -> "OutputLimit":
        """The limit after a broker has refused a record of this size, alone."""
        return replace(self, most=min(self.most, size) - 1, was_refused=True)

    def exceeded_by(self, topic: str, outputs: Sequence[OutgoingFields]) -> dict[int, str]:
        """Why outputs are too large, by the offset of the record that they are of, or that their first row is of."""
        values = [output[_VALUE] or b"" for output in outputs]
        if not values or (max(map(len, values)) < self.most / 2 and not self.was_refused):
            return {}
        sizes = [(record_size(value, key, headers), headers) for _, _, value, key, headers, _ in outputs]
        return {
            orjson.loads(headers[-1][1] or b"")["offset"]: f"its output has {size} bytes, more than {topic} takes: "
            f"raise its {_OPTION}, or emit less"
            for size, headers in sizes
            if size > self.most
        }


def _once(values: Sequence[bytes | None], counts: NDArray[np.int64]) -> NDArray[Any]:
    """A row for each vector of records, which have `counts` (m,): the record's value in its first row."""
    column = np.empty(int(counts.sum()), object)
    column[np.cumsum(counts) - counts] = np.array([*values, None], object)[:-1]
    return column


def _chosen(column: list[T], indices: NDArray[np.int64]) -> list[T]:
    return column if len(indices) == len(column) else [column[i] for i in indices]
