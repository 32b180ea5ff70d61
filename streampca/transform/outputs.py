"""The records that are written: one for each record that was read, with its key, timestamp and headers."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from streampca.errors import SourceError
from streampca.sources.dead_letter_headers import dead_letter_headers
from streampca.sources.transactions import Outgoing, Transactions
from streampca.stream.decoded import Reject
from streampca.stream.model_file import PublishedModel
from streampca.stream.record import Record, Vectors
from streampca.transform.encoding import Encode
from streampca.transform.projection import Projection

VERSION, PARTITION, OFFSET = "streampca.model-version", "streampca.partition", "streampca.offset"
"""Headers of outputs: the version of the model, and where the record was read; decimal numbers as text."""


@dataclass(frozen=True)
class Outputs:
    """How records become outputs in the partition of the same number."""

    topic: str
    projection: Projection
    encode: Encode
    several: bool  # whether a record may hold several vectors
    source_topic: str
    dead_letter_topic: str | None

    def of(self, published: PublishedModel, event: Vectors) -> list[Outgoing]:
        """The outputs of the records that hold vectors."""
        vectors, places, _, counts = event.decoded
        if not len(places):
            return []
        chosen = [event.records[place] for place in places]
        if self.several:
            fields = self.projection.of_each(published, vectors, counts)
        else:
            offsets = np.array([record.offset for record in chosen], np.int64)
            fields = self.projection.of(published, vectors, offsets)
        values = self.encode(fields, counts if self.several else None)
        origin = [(VERSION, b"%d" % published.version), (PARTITION, b"%d" % event.partition)]
        return [
            Outgoing(
                self.topic, event.partition, value, record.key,
                [*record.headers, *origin, (OFFSET, b"%d" % record.offset)], record.timestamp,
            )
            for record, value in zip(chosen, values, strict=True)
        ]  # fmt: skip

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
