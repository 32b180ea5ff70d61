"""What a consumer fetches, and from where.

`KafkaConsumer._fetcher._paused_partition_records`
    After resuming several paused partitions, kafka-python returns one partition's buffered records and stops fetching
    the others until they are consumed.
`KafkaConsumer._subscription.position`
    `position()` goes through all partitions at each call.
`KafkaConsumer._subscription.seek`
    `seek()` takes no leader epoch, with which the client verifies that the log still holds the record before.
"""

from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from streampca.stream.record import LastRecord


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
