"""Makes the messages that transform writes: one for each record that was read, or one for many records."""

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

_VALUE: Final = 2  # index of the value in `OutgoingFields`
OUTPUT_TOO_LARGE = "output_too_large"
_LIMIT_OPTION = "max.message.bytes"  # of a topic

ORIGIN = "streampca.transform"
"""Header of outputs: the version of the model, and where the record was read, as JSON.

It is one header, since three of them made a member with confluent-kafka a fifth slower.
"""


class Selection(NamedTuple):
    """The m records of a batch that get outputs, and the fields that were computed from their n vectors."""

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

    def messages(self, topic: str, selection: Selection, most_bytes: float = math.inf) -> Iterable[OutgoingFields]:
        """Return messages to the topic's partition of the same number, each for one or more records.

        The topic takes messages of at most `most_bytes`.
        """


class RecordPacker:
    """A message for each record, with its key, timestamp and headers."""

    def __init__(self, writer: Writer, *, batches: bool) -> None:
        """The output of a record with several vectors has lists; with `batches`, also that of one with one vector."""
        self._writer = writer
        self._batches = batches

    def messages(self, topic: str, selection: Selection, most_bytes: float = math.inf) -> Iterable[OutgoingFields]:
        values = self.values(selection.fields, selection.counts)
        origin = origin_template(selection.version, selection.partition)
        headers = [
            [*headers_of_record, (ORIGIN, origin % offset)]
            for headers_of_record, offset in zip(selection.headers, selection.offsets.tolist(), strict=True)
        ]
        timestamps = selection.timestamps.tolist()
        return zip(repeat(topic), repeat(selection.partition), values, selection.keys, headers, timestamps)

    def values(self, fields: Fields, counts: NDArray[np.int64]) -> Sequence[bytes]:
        """Return a value for each of m records; `counts` (m,) are their numbers of rows in the fields."""
        are_lists = (counts > 1) | self._batches
        if not are_lists.any():
            return self._writer.write(fields)
        if are_lists.all():
            return self._writer.write(fields, counts)
        rows = np.repeat(are_lists, counts)
        fields_of_lists = {name: values[rows] for name, values in fields.items()}
        fields_of_singles = {name: values[~rows] for name, values in fields.items()}
        lists = iter(self._writer.write(fields_of_lists, counts[are_lists]))
        singles = iter(self._writer.write(fields_of_singles))
        return [next(lists if is_list else singles) for is_list in are_lists.tolist()]


def origin_template(version: int, partition: int) -> bytes:
    """Return the value of the header `ORIGIN`, to be formatted with the offset."""
    return b'{"model_version":%d,"partition":%d,"offset":%%d}' % (version, partition)


class TransformedBatch(NamedTuple):
    """A batch, and its outputs by one version of the model."""

    # Unless records are rejected, they and the vectors are dropped. An optimisation: the next ones use their memory,
    # which is still in the processor's cache.
    batch: Vectors
    records: int  # number of records that the batch had
    last: LastRecord | None  # of these records
    outputs: list[OutgoingFields]
    written: int  # number of records that have an output
    version: int  # of the model


@dataclass(frozen=True)
class Outputs:
    """Makes the outputs of records, in the partition of the same number."""

    topic: str
    codec: Codec
    model: CurrentModel
    output_fields: OutputFields  # must compute p if `only_p_below` is set
    packer: Packer
    source_topic: str
    dead_letter_topic: str | None = None
    only_p_below: float | None = None  # leave out records whose vectors all have a p-value of this or more

    def project(self, published: PublishedModel, limit: "OutputLimit", event: Vectors) -> TransformedBatch:
        """Project decoded records with a model, and reject records whose outputs are too large.

        Any thread may call it.
        """
        outputs, written = self._make_outputs(published, limit, event)
        too_large = limit.find_too_large(self.topic, outputs)
        if too_large:
            return self.project(published, limit, event.reject(OUTPUT_TOO_LARGE, too_large))
        kept = event
        if not event.decoded.rejects:
            without_vectors = event.decoded._replace(vectors=np.zeros((0, 0)))
            kept = replace(event, decoded=without_vectors, records=())
        return TransformedBatch(
            batch=kept,
            records=len(event.records),
            last=event.last,
            outputs=outputs,
            written=written,
            version=published.version,
        )

    def _make_outputs(
        self, published: PublishedModel, limit: "OutputLimit", event: Vectors
    ) -> tuple[list[OutgoingFields], int]:
        """Return the outputs, and the number of records that have one."""
        vectors, indices, _, counts, _ = event.decoded
        if not len(indices):
            return [], 0
        offsets = offsets_of(event.records)[indices]
        timestamps = event.timestamps
        in_batches = (counts > 1) | self.codec.is_batch
        fields = self.output_fields.project(published, vectors, offsets, counts, in_batches)
        if self.only_p_below is not None:
            first_vectors = np.cumsum(counts) - counts
            below = np.logical_or.reduceat(fields["p"] < self.only_p_below, first_vectors)  # (m,)
            rows = np.repeat(below, counts)
            fields = {name: values[rows] for name, values in fields.items()}
            indices = indices[below]
            counts = counts[below]
            offsets = offsets[below]
            timestamps = timestamps[below]
            if not len(indices):
                return [], 0
        if "record" in self.output_fields.kinds:
            values = _select(values_of(event.records), indices)
            fields = {**fields, "record": _put_in_first_rows(values, counts)}
        selection = Selection(
            partition=event.partition,
            version=published.version,
            fields={name: fields[name] for name in self.output_fields.kinds},
            counts=counts,
            keys=_select(keys_of(event.records), indices),
            headers=_select(headers_of(event.records), indices),
            offsets=offsets,
            timestamps=timestamps,
        )
        return list(self.packer.messages(self.topic, selection, limit.most)), len(indices)

    def make_dead_letter(self, partition: int, record: Record, reject: Reject) -> Outgoing:
        """Return the dead letter of a rejected record. Without a dead-letter topic, raises `ValueError`."""
        if self.dead_letter_topic is None:
            raise ValueError("dead_letter_topic is not set")
        headers = dead_letter_headers(self.source_topic, partition, record, reject.reason, reject.message)
        return Outgoing(self.dead_letter_topic, None, record.value, record.key, headers, timestamp=-1)


def refuse_too_few(topic: str, count: int, source_topic: str, partitions: Collection[int]) -> None:
    """Raise `SourceError` if an output topic with `count` partitions lacks one of these partitions of the source."""
    if max(partitions, default=-1) >= count:
        raise SourceError(
            f"{topic} has {count} partitions, fewer than {source_topic}: add some, since each partition is written to "
            "the one of the same number, to keep the order"
        )


@dataclass(frozen=True)
class OutputLimit:
    """The largest record that the output topic takes, as far as its options and earlier refusals tell."""

    most: float = math.inf  # bytes
    by_options: float = math.inf  # bytes, by the topic's options alone
    was_refused: bool = False  # a broker has refused a record: small values may have large headers or keys

    def with_options(self, configs: Mapping[str, str]) -> "OutputLimit":
        """Return the limit by the topic's options, if they are known; refusals count until the options change."""
        by_options = float(configs.get(_LIMIT_OPTION, self.by_options))
        if by_options == self.by_options:
            return self
        return replace(self, most=by_options, by_options=by_options)

    def after_refusal(self, size: int) -> "OutputLimit":
        """Return the limit after a broker has refused a single record of this size, in bytes."""
        return replace(self, most=min(self.most, size) - 1, was_refused=True)

    def find_too_large(self, topic: str, outputs: Sequence[OutgoingFields]) -> dict[int, str]:
        """Return why outputs are too large, by the offset of the record, or of the first one of many records."""
        longest_value = max((len(output[_VALUE] or b"") for output in outputs), default=0)
        if longest_value < self.most / 2 and not self.was_refused:  # an optimisation: sizes are computed rarely
            return {}
        too_large: dict[int, str] = {}
        for _, _, value, key, headers, _ in outputs:
            size = record_size(value, key, headers)
            if size > self.most:
                origin = orjson.loads(headers[-1][1] or b"")
                too_large[origin["offset"]] = (
                    f"its output has {size} bytes, more than {topic} takes: raise its {_LIMIT_OPTION}, or emit less"
                )
        return too_large


def _put_in_first_rows(values: Sequence[bytes | None], counts: NDArray[np.int64]) -> NDArray[Any]:
    """Return a column with a row for each vector of m records: the record's value in its first row, else None."""
    column = np.empty(int(counts.sum()), object)
    first_rows = np.cumsum(counts) - counts
    column[first_rows] = np.array(values, object)
    return column


def _select(column: list[T], indices: NDArray[np.int64]) -> list[T]:
    return column if len(indices) == len(column) else [column[i] for i in indices]
