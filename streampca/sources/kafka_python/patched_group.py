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
        """Join the group, but only once in a generation, and return the assignment of the generation.

        If an assignment arrives between two polls, the client drops it, and calls this again. Then return the kept
        assignment: joining again would begin another rebalance.
        """
        is_kept = self._kept_assignment is not None and self._kept_generation is self._generation
        if not is_kept:
            self._assigned_nothing = False  # `_perform_assignment` sets it again if this member leads the group
            self._kept_assignment = await super()._do_join_and_sync_async()
            self._kept_generation = self._generation
        return self._kept_assignment

    async def _on_join_complete_async(self, *args: Any) -> None:
        """Take the assignment. The client calls this only within a poll."""
        self._kept_generation = None
        self._kept_assignment = None
        await super()._on_join_complete_async(*args)

    def _perform_assignment(self, *args: Any) -> Any:
        """Assign partitions to all members of the group, which this member leads."""
        assignments = super()._perform_assignment(*args)
        self._assigned_nothing = not any(assignment.partitions() for assignment in assignments.values())
        return assignments

    def need_rejoin(self) -> bool:
        """Return whether to join the group again.

        Fault of kafka-python: a leader that briefly lacks the right to read assigns no partition, and does not assign
        again.
        """
        if self._assigned_nothing and self._knows_partitions():
            return True
        return bool(super().need_rejoin())

    def _knows_partitions(self) -> bool:
        return any(self._cluster.partitions_for_topic(topic) for topic in self._subscription.subscription)

    def time_to_next_poll(self) -> float:
        """Return infinity, since another thread sends the heartbeats.

        Fault of kafka-python: a poll spins while a heartbeat is due.
        """
        return math.inf

    def _handle_heartbeat_response(self, *args: Any) -> None:
        """Handle the answer to a heartbeat, and keep the error of a fenced member for `raise_if_fenced`.

        Fault of kafka-python: no poll raises this error.
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

        Fault of kafka-python: some get none if members with and without a `group_instance_id` alternate.
        """
        return super().assign(cluster, sorted(members, key=lambda member: member.group_instance_id is None))
