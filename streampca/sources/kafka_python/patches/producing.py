"""A producer's unsent records and transactions.

`KafkaProducer._sender.force_close`
    `close` waits without limit while records are unsent.
`KafkaProducer._transaction_manager`
    `commit_transaction` and its like wait without limit.
"""

from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError


def abort_sending(producer: KafkaProducer) -> None:
    """Give up the records that are not sent yet."""
    producer._sender.force_close()


def transactional(producer: KafkaProducer, method: str, *arguments: Any, timeout_s: float) -> None:
    """Call a method of the producer's transactions. Raises `KafkaTimeoutError` if it takes longer."""
    result = getattr(producer._transaction_manager, method)(*arguments)
    producer._sender.wakeup()
    if not result.wait(timeout_s * 1000):
        raise KafkaTimeoutError(f"no answer within {timeout_s:g} s")
