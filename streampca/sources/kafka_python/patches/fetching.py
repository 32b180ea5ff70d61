"""What a consumer fetches, and from where.

`KafkaConsumer._fetcher`: `Fetcher._append`, `Fetcher.PartitionRecords.take`
    A poll is limited in records, not in bytes, and compressed records may be large: it is limited in both.
`KafkaConsumer._fetcher._paused_partition_records`
    Of several partitions that are resumed, only one gets the records back that were fetched before the pause, and
    nothing is fetched of the others until these are read.
`KafkaConsumer._subscription.position`
    `position()` goes through all partitions at each call.
`KafkaConsumer._subscription.seek`
    `seek()` takes no leader epoch, with which the client verifies that the log still holds the record before.
"""

from itertools import islice
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer import group
from kafka.consumer.fetcher import Fetcher
from kafka.structs import OffsetAndMetadata

from streampca.stream.record import LastRecord

_POLL_BYTES = 16 * 2**20  # values returned by one poll; the last batch may exceed it


class PatchedPartitionRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    """Fetched records of one partition, of which no more are taken at once than make `_POLL_BYTES`."""

    taken_bytes = 0

    def take(self, n: int | None = None) -> list[Any]:
        self._maybe_raise_next_inline_exception()
        records: list[Any] = []
        self.taken_bytes = 0
        try:
            for record in islice(self.record_iterator, n):
                records.append(record)
                self.taken_bytes += record.serialized_value_size
                if self.taken_bytes >= _POLL_BYTES:
                    break
        except Exception as error:
            if not records:
                raise
            self._next_inline_exception = error  # raised by the next call
        return records


class PatchedFetcher(Fetcher):  # type: ignore[misc]
    """Returns no more records at once, of all partitions, than make about `_POLL_BYTES`."""

    PartitionRecords = PatchedPartitionRecords
    _polled_bytes = 0

    def _append(self, drained: Any, part: Any, max_records: int, update_offsets: bool) -> int:
        if not drained:
            self._polled_bytes = 0
        appended: int = super()._append(drained, part, max_records, update_offsets)
        self._polled_bytes += part.taken_bytes if appended else 0
        return max_records if self._polled_bytes >= _POLL_BYTES else appended  # all of them: the poll ends


group.Fetcher = PatchedFetcher


def position_of(consumer: KafkaConsumer, partition: TopicPartition) -> int | None:
    """The next offset to fetch; None while it is not known."""
    position = consumer._subscription.position(partition)
    return None if position is None else int(position.offset)


def seek_behind(consumer: KafkaConsumer, partition: TopicPartition, last: LastRecord) -> None:
    """Fetch from behind a record; the client raises `LogTruncationError` if the log does not hold it any more."""
    consumer._subscription.seek(partition, OffsetAndMetadata(last.offset + 1, "", last.leader_epoch))


def drop_paused_records(consumer: KafkaConsumer, partition: TopicPartition) -> None:
    """Drop what was fetched of a partition before it was paused."""
    consumer._fetcher._paused_partition_records.pop(partition, None)
