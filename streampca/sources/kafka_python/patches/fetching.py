"""Bugs of fetching.

- After several paused partitions are resumed, the records buffered of one are returned, and the others are not fetched
  until these are consumed (`KafkaConsumer._fetcher._paused_partition_records`): they are dropped.
- `position()` goes through all partitions at each call (`KafkaConsumer._subscription.position`).
"""

from kafka import KafkaConsumer, TopicPartition


def position_of(consumer: KafkaConsumer, partition: TopicPartition) -> int | None:
    """The next offset to fetch; None while it is not known."""
    position = consumer._subscription.position(partition)
    return None if position is None else int(position.offset)


def drop_paused_records(consumer: KafkaConsumer, partition: TopicPartition) -> None:
    """Drop what was fetched of a partition before it was paused."""
    consumer._fetcher._paused_partition_records.pop(partition, None)
