"""Sends dead letters' records again, in transactions."""

from collections.abc import Iterable

from streampca.sources.base import OutgoingFields, RecordRefusedError
from streampca.sources.client_transactions import ClientTransactions
from streampca.sources.record_times import RecordTimes

COMMIT_S = 60.0  # a person waits; brokers abort the transaction of a killed replay after this time


class ReplayProducer:
    """Sends records in transactions. Opening one ends the transactions of any other with the same name.

    All methods raise as `Transactions`; then nothing of the transaction is visible to readers of committed records,
    unless `send` was in its end: then all of it may be.
    """

    def __init__(self, topic: str, transactions: ClientTransactions) -> None:
        self._transactions, self.close = transactions, transactions.close
        transactions.begin_s, transactions.commit_s = COMMIT_S / 2, COMMIT_S
        self._times, self.replaced = RecordTimes(topic, transactions), 0  # records with the time of sending, so far
        transactions.recover()
        self.partitions = transactions.partitions(topic)

    def send(self, records: Iterable[OutgoingFields]) -> None:
        """Send records as one transaction, and return when it is committed."""
        records = list(records)
        while True:
            sendable, replaced = self._times.sendable(records)
            try:
                self._transactions.send(sendable)
                self._transactions.commit({})
                break
            except RecordRefusedError as error:
                self._times.retry(error)
                self._transactions.recover()
        self._times.tries = 0
        self.replaced += replaced
