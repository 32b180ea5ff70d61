"""What a consumer fetches, and from where.

`KafkaConsumer._fetcher._paused_partition_records`
    After resuming several paused partitions, kafka-python returns one partition's buffered records and stops fetching
    the others until they are consumed.
`KafkaConsumer._subscription.position`
    `position()` goes through all partitions at each call.
"""

from kafka import KafkaConsumer, TopicPartition


def position_of(consumer: KafkaConsumer, partition: TopicPartition) -> int | None:
    """The next offset to fetch; None while it is not known."""
    position = consumer._subscription.position(partition)
    return None if position is None else int(position.offset)


def drop_paused_records(consumer: KafkaConsumer, partition: TopicPartition) -> None:
    """Drop what was fetched of a partition before it was paused."""
    consumer._fetcher._paused_partition_records.pop(partition, None)
