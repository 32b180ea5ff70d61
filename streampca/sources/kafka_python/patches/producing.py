"""A producer's unsent records and transactions.

`KafkaProducer._sender.force_close`
    `close` waits without limit while records are unsent.
`KafkaProducer._transaction_manager`
    `commit_transaction` and its like wait without limit.
"""

import time
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError


def abort_sending(producer: KafkaProducer) -> None:
    """Give up the records that are not sent yet."""
    producer._sender.force_close()


def transactional(producer: KafkaProducer, method: str, *arguments: Any, deadline: float) -> None:
    """Call a method of the producer's transactions. Raises `KafkaTimeoutError` at the deadline (`time.monotonic`)."""
    result = getattr(producer._transaction_manager, method)(*arguments)
    producer._sender.wakeup()
    if not result.wait(max(deadline - time.monotonic(), 0) * 1000):
        raise KafkaTimeoutError("the brokers did not answer in time")
