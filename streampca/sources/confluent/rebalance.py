"""The rebalance listener of a confluent-kafka consumer: it records events, and suspends the rebalance by `assign`.

librdkafka runs callbacks during a rebalance, within `consume`, and expects them to call `assign` or `unassign`. Both
callbacks assign nothing: fetching stops at once, and after a revocation the group waits, while heartbeats continue,
until the next poll calls `unassign`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from streampca.fold.events import Assigned, Lost, Revoked
from streampca.sources.client_source import partition_numbers


class RebalanceListener:
    """Collects the events of rebalances, and follows whether the consumer is a member of its group."""

    def __init__(self) -> None:
        self.events: list[Assigned | Revoked | Lost] = []
        self.is_member = self.closing = False
        self.memberships: deque[Any] = deque()  # the group's metadata of the assignments in `events`
        self._revoking = False  # the group waits until the revocation is handled

    def callbacks(self) -> dict[str, Callable[[Consumer, Sequence[TopicPartition]], None]]:
        """Arguments of `Consumer.subscribe`."""
        return {"on_assign": self._on_assign, "on_revoke": self._on_revoke, "on_lost": self._on_lost}

    def proceed(self, consumer: Consumer) -> None:
        """Let the group continue if it waits for a revocation that is handled by now."""
        if self._revoking and not self.events:
            self._revoking = False
            consumer.unassign()

    def _on_assign(self, consumer: Consumer, assigned: Sequence[TopicPartition]) -> None:
        consumer.assign([])
        self.is_member = True
        if assigned:
            self.memberships.append(consumer.consumer_group_metadata())
        self._append(Assigned(partition_numbers(assigned)))

    def _on_revoke(self, consumer: Consumer, revoked: Sequence[TopicPartition]) -> None:
        self.is_member = False
        if not self.closing:
            consumer.assign([])  # makes the group wait for us; without it librdkafka calls `unassign` itself
            self._revoking = True
            self._append(Revoked(partition_numbers(revoked)))

    def _on_lost(self, consumer: Consumer, lost: Sequence[TopicPartition]) -> None:
        self.is_member = False
        if not self._revoking:  # else the event `Revoked` exists already, and the worker may not be done with it
            self._append(Lost(partition_numbers(lost)))
        self._revoking = False

    def _append(self, event: Assigned | Revoked | Lost) -> None:
        if event.partitions:
            self.events.append(event)
