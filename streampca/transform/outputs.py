"""The records that are written: one for each record that was read, with its key, timestamp and headers."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from streampca.errors import SourceError
from streampca.sources.dead_letter_headers import dead_letter_headers
from streampca.sources.transactions import Outgoing, Transactions
from streampca.stream.decoded import Reject
from streampca.stream.model_file import PublishedModel
from streampca.stream.record import Record, Vectors, headers_of, keys_of, offsets_of
from streampca.transform.encoding import Encode
from streampca.transform.projection import Projection

T = TypeVar("T")

VERSION, PARTITION, OFFSET = "streampca.model-version", "streampca.partition", "streampca.offset"
"""Headers of outputs: the version of the model, and where the record was read; decimal numbers as text."""


@dataclass(frozen=True)
class Outputs:
    """How records become outputs in the partition of the same number."""

    topic: str
    projection: Projection  # computes `emitted`, and p if `only_p_below` is set
    encode: Encode
    several: bool  # whether a record may hold several vectors
    source_topic: str
    dead_letter_topic: str | None = None
    only_p_below: float | None = None  # leave out records whose vectors all have a p-value of this or more

    def of(self, published: PublishedModel, event: Vectors) -> list[Outgoing]:
        """The outputs of the records that hold vectors."""
        vectors, places, _, counts = event.decoded
        if not len(places):
            return []
        offsets, timestamps = np.array(offsets_of(event.records), np.int64)[places], event.timestamps
        if self.several:
            fields = self.projection.of_each(published, vectors, counts)
        else:
            fields = self.projection.of(published, vectors, offsets)
        if self.only_p_below is not None:
            below = np.logical_or.reduceat(fields["p"] < self.only_p_below, np.cumsum(counts) - counts)
            fields = {name: values[np.repeat(below, counts)] for name, values in fields.items()}
            places, counts, offsets, timestamps = places[below], counts[below], offsets[below], timestamps[below]
            if not len(places):
                return []
        fields = {name: fields[name] for name in self.projection.emitted}
        values, extra = self.encode(fields, counts if self.several else None)
        keys, headers = (_chosen(column, places) for column in (keys_of(event.records), headers_of(event.records)))
        origin = [(VERSION, b"%d" % published.version), (PARTITION, b"%d" % event.partition)]
        columns = zip(values, keys, headers, offsets.tolist(), timestamps.tolist(), strict=True)
        topic, partition = self.topic, event.partition
        outputs = [
            Outgoing(topic, partition, value, key, [*own, *origin, (OFFSET, b"%d" % offset)], timestamp)
            for value, key, own, offset, timestamp in columns
        ]
        for output, header in zip(outputs, extra, strict=True) if extra else ():
            output.headers.append(header)
        return outputs

    def dead_letter(self, partition: int, record: Record, reject: Reject) -> Outgoing:
        """A record that cannot be projected. Raises `ValueError` without a dead-letter topic."""
        if self.dead_letter_topic is None:
            raise ValueError("dead_letter_topic is not set")
        why = dead_letter_headers(self.source_topic, partition, record.offset, reject.reason, reject.message)
        headers = [*record.headers, *why]
        return Outgoing(self.dead_letter_topic, None, record.value, record.key, headers, record.timestamp)

    def check_partitions(self, partitions: Collection[int], transactions: Transactions) -> None:
        """Raise `SourceError` unless the output topic has these partitions, too; `TimeoutError` if nobody answers."""
        count = transactions.partitions(self.topic)
        if max(partitions, default=-1) >= count:
            raise SourceError(
                f"{self.topic} has {count} partitions, fewer than {self.source_topic}: add some, since each partition "
                "is written to the one of the same number, to keep the order"
            )


def _chosen(column: list[T], places: NDArray[np.int64]) -> list[T]:
    """The values of these places."""
    return column if len(places) == len(column) else [column[place] for place in places]
