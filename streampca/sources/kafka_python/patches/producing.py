"""Bugs of a producer.

- `close` gives nothing up while records are unsent, and raises if they are not sent in time (`_sender.force_close`).
- `commit_transaction` and its like wait without limit (`_transaction_manager`).
"""

import contextlib
import time
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError


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
