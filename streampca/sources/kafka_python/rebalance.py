"""The rebalance listener of a kafka-python consumer: it records events, and suspends the rebalance by raising."""

import logging
from collections.abc import Callable, Collection

from kafka import ConsumerRebalanceListener, TopicPartition

from streampca.fold.events import Assigned, Lost, Revoked
from streampca.sources.client_source import partition_numbers


class _SuspendError(Exception):
    """Raised to the client: suspend this rebalance until the worker has handled the event."""


class RebalanceListener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """Collects the events of rebalances; runs in the client's thread, while the worker's waits in the client's poll."""

    def __init__(self, rejoin: Callable[[], None]) -> None:
        self._rejoin = rejoin
        self.events: list[Assigned | Revoked | Lost] = []
        self.closing = False
        self._revoked: frozenset[int] = frozenset()  # recorded, and handled by the time of the next call
        # The client logs what the listener raises as errors, with a traceback.
        logging.getLogger("kafka.coordinator.consumer").addFilter(_is_not_ours)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._rejoin()  # kafka-python may forget the rebalance once it is suspended
        partitions = partition_numbers(revoked) - self._revoked
        self._revoked |= partitions
        self._record(Revoked(partitions))

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._revoked = frozenset()
        self._record(Assigned(partition_numbers(assigned)))

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        partitions = partition_numbers(lost) - self._revoked
        self._revoked = frozenset()
        self._record(Lost(partitions))

    def _record(self, event: Assigned | Revoked | Lost) -> None:
        if event.partitions and not self.closing:
            self.events.append(event)
            raise _SuspendError


def _is_not_ours(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], _SuspendError))
