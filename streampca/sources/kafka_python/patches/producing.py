"""A producer's unsent records and transactions.

`KafkaProducer._accumulator`: `RecordAccumulator.await_flush_completion`
    `flush` and `close` wait as long for every batch: minutes, if many are sent slowly.
`KafkaProducer._sender.force_close`
    `close` gives nothing up while records are unsent, and raises if they are not sent in time.
`KafkaProducer._transaction_manager`
    `commit_transaction` and its like wait without limit.
"""

import contextlib
import time
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError
from kafka.producer import kafka as producer_module
from kafka.producer.record_accumulator import RecordAccumulator


class PatchedAccumulator(RecordAccumulator):  # type: ignore[misc]  # kafka-python has no types
    """Unsent batches, which are waited for together."""

    def await_flush_completion(self, timeout: float | None = None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            for batch in self._incomplete.all():
                left_s = None if deadline is None else max(deadline - time.monotonic(), 0)
                if not batch.produce_future.wait(left_s):
                    raise KafkaTimeoutError("records are not acknowledged yet")
        finally:
            self._flushes_in_progress.decrement()


producer_module.RecordAccumulator = PatchedAccumulator


def drop(producer: KafkaProducer, timeout_s: float) -> None:
    """Give up the records that are not sent yet, and close the producer, within about twice that time."""
    producer._sender.force_close()
    with contextlib.suppress(KafkaTimeoutError):  # its thread is late, and ends by itself
        producer.close(timeout=timeout_s)


def transactional(producer: KafkaProducer, method: str, *arguments: Any, deadline: float) -> None:
    """Call a method of the producer's transactions. Raises `KafkaTimeoutError` at the deadline (`time.monotonic`)."""
    result = getattr(producer._transaction_manager, method)(*arguments)
    producer._sender.wakeup()
    if not result.wait(max(deadline - time.monotonic(), 0) * 1000):
        raise KafkaTimeoutError("the brokers did not answer in time")
