"""Functions that need private parts of kafka-python 3.0.12, since its public methods fail or are missing.

Most docstrings name the fault of kafka-python. See also `patched_connections`.
"""

import contextlib
import time
from collections.abc import Iterable
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition, errors

from streampca.sources.base import Committed

_CLOSE_TIMEOUT_S = 0.5


def rejoin_group(consumer: KafkaConsumer) -> None:
    """Ask for a rebalance at the next poll.

    Fault of kafka-python: the client forgets a rebalance if its poll ends before the group answers.
    """
    consumer._coordinator.request_rejoin()


def raise_if_fenced(consumer: KafkaConsumer) -> None:
    """Raise `FencedInstanceIdError` if another member has joined with the consumer's `group_instance_id`."""
    if consumer._coordinator.fenced is not None:
        raise consumer._coordinator.fenced


def read_committed_offsets(
    consumer: KafkaConsumer, partitions: Iterable[TopicPartition], timeout_ms: int
) -> dict[int, Committed]:
    """Ask in one request for the group's committed offsets of these partitions.

    Fault of kafka-python: after a timeout, the next call returns the old answer.
    """
    consumer._coordinator._offset_fetch_futures.clear()  # drops old answers
    offsets = consumer._coordinator.fetch_committed_offsets(list(partitions), timeout_ms=timeout_ms)
    committed = {}
    for tp, offset_and_metadata in offsets.items():
        metadata = (offset_and_metadata.metadata or "").rstrip("\0")  # librdkafka adds a zero byte
        committed[tp.partition] = Committed(offset_and_metadata.offset, metadata)
    return committed


def is_member(consumer: KafkaConsumer) -> bool:
    """Return whether the group counts the consumer as a member, and no rebalance is in progress."""
    return bool(consumer._coordinator.stable())


def next_fetch_offset(consumer: KafkaConsumer, partition: TopicPartition) -> int | None:
    """Return the next offset to fetch; None while it is not known. The public method `position` is slow."""
    position = consumer._subscription.position(partition)
    return None if position is None else int(position.offset)


def drop_paused_records(consumer: KafkaConsumer, partition: TopicPartition) -> None:
    """Drop the records of a partition that were fetched before it was paused.

    Fault of kafka-python: if several partitions with such records are resumed, it returns the records of one of them,
    and then reads nothing of the others.
    """
    consumer._fetcher._paused_partition_records.pop(partition, None)


def close_producer(producer: KafkaProducer) -> None:
    """Close the producer without sending what is left, within about a second.

    Fault of kafka-python: `close` waits up to its timeout for the records that were not sent yet, and then as long for
    its thread.
    """
    producer._sender.force_close()
    with contextlib.suppress(errors.KafkaTimeoutError):  # its thread will end later
        producer.close(timeout=_CLOSE_TIMEOUT_S)


def call_transactional(producer: KafkaProducer, method: str, *arguments: Any, deadline: float) -> None:
    """Call a method of the producer's transaction manager, and wait for the brokers' answer.

    Raises `KafkaTimeoutError`. Fault of kafka-python: the public methods wait without limit.
    """
    result = getattr(producer._transaction_manager, method)(*arguments)
    producer._sender.wakeup()
    timeout_ms = max(deadline - time.monotonic(), 0) * 1000
    if not result.wait(timeout_ms):
        raise errors.KafkaTimeoutError("the brokers did not answer in time")
