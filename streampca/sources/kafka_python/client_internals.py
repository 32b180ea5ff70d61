"""Functions that need private parts of kafka-python 3.0.12, since its public methods fail or are missing.

See `patched_connections`.
"""

import contextlib
import time
from collections.abc import Iterable
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition, errors

from streampca.sources.base import Committed


def rejoin_group(consumer: KafkaConsumer) -> None:
    """Ask for a rebalance at the next poll.

    Fault of kafka-python: if the partitions of the topic change, the client begins a rebalance. It forgets this
    rebalance if its poll ends before the group answers, or if the partitions change back meanwhile. The member would
    then have neither partitions nor heartbeats.
    """
    consumer._coordinator.request_rejoin()


def raise_if_fenced(consumer: KafkaConsumer) -> None:
    """Raise `FencedInstanceIdError` if another member has joined with the consumer's `group_instance_id`."""
    if consumer._coordinator.fenced is not None:
        raise consumer._coordinator.fenced


def read_committed_offsets(
    consumer: KafkaConsumer, partitions: Iterable[TopicPartition], timeout_ms: int
) -> dict[int, Committed]:
    """Ask for the group's committed offsets of partitions of one topic; a partition without one is left out.

    The public method `committed` sends a request for each partition; this request is for all partitions.

    Fault of kafka-python: if a request for offsets has timed out, its answer is returned by the next call. We drop it.
    """
    consumer._coordinator._offset_fetch_futures.clear()
    offsets = consumer._coordinator.fetch_committed_offsets(list(partitions), timeout_ms=timeout_ms)
    committed = {}
    for tp, offset_and_metadata in offsets.items():
        metadata = (offset_and_metadata.metadata or "").rstrip("\0")  # librdkafka commits the zero that ends a C string
        committed[tp.partition] = Committed(offset_and_metadata.offset, metadata)
    return committed


def is_member(consumer: KafkaConsumer) -> bool:
    """Return whether the group counts the consumer as a member, and no rebalance is in progress."""
    return bool(consumer._coordinator.stable())


def next_fetch_offset(consumer: KafkaConsumer, partition: TopicPartition) -> int | None:
    """Return the next offset to fetch; None while it is not known.

    The public method `position` is slow: it goes through all partitions at each call.
    """
    position = consumer._subscription.position(partition)
    return None if position is None else int(position.offset)


def drop_paused_records(consumer: KafkaConsumer, partition: TopicPartition) -> None:
    """Drop the records of a partition that were fetched before it was paused.

    The caller has sought the offset from which the client will fetch now, so no record is lost.

    Fault of kafka-python: if a resumed partition has such records, the client fetches no other resumed partition until
    they are consumed.
    """
    consumer._fetcher._paused_partition_records.pop(partition, None)


def close_producer(producer: KafkaProducer, timeout_s: float) -> None:
    """Close the producer without sending what is left, within about twice `timeout_s`.

    Fault of kafka-python: `close` waits for the records that were not sent yet, and raises if they are not sent in
    time.
    """
    producer._sender.force_close()
    with contextlib.suppress(errors.KafkaTimeoutError):  # its thread did not end in time; it will end by itself
        # `close` waits for `timeout` until the records are gone, and once more until the thread has ended.
        producer.close(timeout=timeout_s)


def call_transactional(producer: KafkaProducer, method: str, *arguments: Any, deadline: float) -> None:
    """Call a method of the producer's transaction manager, and wait for the brokers' answer.

    Raises `KafkaTimeoutError` at the deadline (by `time.monotonic`). Fault of kafka-python: `commit_transaction` and
    the other public methods wait without limit.
    """
    result = getattr(producer._transaction_manager, method)(*arguments)
    producer._sender.wakeup()  # its thread sends the request
    timeout_ms = max(deadline - time.monotonic(), 0) * 1000
    if not result.wait(timeout_ms):
        raise errors.KafkaTimeoutError("the brokers did not answer in time")
