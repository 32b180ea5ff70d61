"""Workarounds for bugs of kafka-python 3.0.12 in a consumer's membership of its group; see `patched_connections`.

Importing this module patches all consumers.
"""

import math
from collections.abc import Iterable
from typing import Any

from kafka import errors
from kafka.consumer import group
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.consumer import ConsumerCoordinator


class PatchedCoordinator(ConsumerCoordinator):  # type: ignore[misc]
    """A consumer's membership of its group.

    Fault of kafka-python: if the group's assignment arrives between two polls, it is dropped, and the consumer joins
    again. That is another rebalance of all members. We keep the assignment until a poll takes it.
    """

    fenced: errors.FencedInstanceIdError | None = None  # the error if another member has replaced this one
    _assigned_nothing = False  # whether this member leads the group, and knew no partition when it assigned
    _kept_assignment: Any = None  # an assignment that no poll has taken yet
    _kept_generation: Any = None  # the group's generation of this assignment

    async def _do_join_and_sync_async(self) -> Any:
        """Return the kept assignment of this generation; if there is none, join the group to get an assignment.

        Fault of kafka-python: if the assignment arrives between two polls, the client drops it and calls this method
        again, which would join the group once more.
        """
        is_kept = self._kept_assignment is not None and self._kept_generation is self._generation
        if not is_kept:
            self._assigned_nothing = False
            self._kept_assignment = await super()._do_join_and_sync_async()
            self._kept_generation = self._generation
        return self._kept_assignment

    async def _on_join_complete_async(self, *args: Any) -> None:
        """Take the assignment. The client calls this only within a poll, so the assignment is not kept any more."""
        self._kept_generation = None
        self._kept_assignment = None
        await super()._on_join_complete_async(*args)

    def _perform_assignment(self, *args: Any) -> Any:
        """Assign partitions to all members of the group, which this member leads.

        It also notes for `need_rejoin` if nobody gets a partition.
        """
        assignments = super()._perform_assignment(*args)
        self._assigned_nothing = not any(assignment.partitions() for assignment in assignments.values())
        return assignments

    def need_rejoin(self) -> bool:
        """Return whether to join the group again.

        Fault of kafka-python: if the group's leader may not read the topic for a moment, it assigns no partition to
        anybody, and does not assign again. We let the leader join again as soon as it knows partitions.
        """
        if self._assigned_nothing and self._knows_partitions():
            return True
        return bool(super().need_rejoin())

    def _knows_partitions(self) -> bool:
        return any(self._cluster.partitions_for_topic(topic) for topic in self._subscription.subscription)

    def time_to_next_poll(self) -> float:
        """Return infinity: a poll never has to end for a heartbeat, because another thread sends the heartbeats.

        Fault of kafka-python: while a heartbeat is due or unanswered, a poll does not wait. It spins, and each turn
        creates one more task, which stays until the pending fetch ends.
        """
        return math.inf

    def _handle_heartbeat_response(self, *args: Any) -> None:
        """Handle the answer to a heartbeat.

        Fault of kafka-python: if another member with the same `group_instance_id` has replaced this one, the client
        stops its heartbeats, and no poll raises the error. We keep the error for `client_internals.raise_if_fenced`.
        """
        try:
            super()._handle_heartbeat_response(*args)
        except errors.FencedInstanceIdError as error:
            self.fenced = error
            raise


group.ConsumerCoordinator = PatchedCoordinator  # this is where kafka-python looks the class up


class PatchedRangeAssignor(RangePartitionAssignor):  # type: ignore[misc]
    """Assigns ranges of partitions to the members of a group."""

    @classmethod
    def assign(cls, cluster: Any, members: Iterable[Any]) -> Any:
        """Assign partitions to all members.

        Fault of kafka-python: if some members have a `group_instance_id` and some have none, members of the two kinds
        must not alternate, or some get no partition. We sort them by kind.
        """
        return super().assign(cluster, sorted(members, key=lambda member: member.group_instance_id is None))
