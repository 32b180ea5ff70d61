"""Bugs of a consumer's membership in its group (`KafkaConsumer._coordinator`).

- An assignment that arrives between two polls is dropped, and the group joined again: another rebalance of all
  (`join_group_async`, `_do_join_and_sync_async`): it is kept for the next poll.
- A rebalance after changed partitions is forgotten if the poll ends before the group answers, or if the change is
  undone meanwhile (`request_rejoin`): the member would have neither partitions nor heartbeat.
- A member that another one with its `group_instance_id` has replaced only stops its heartbeats
  (`_handle_heartbeat_response`): the next poll raises the error.
- Of members with and without a `group_instance_id`, `RangePartitionAssignor.assign` forgets some: they are sorted.
- The answer to a request for offsets that took too long is that of the next call (`_offset_fetch_futures`).
- `committed()` takes one partition, and a request for each (`fetch_committed_offsets`).
- No public method says whether the group counts the consumer as a member (`stable`).
"""

from collections.abc import Iterable
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer import group
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.errors import FencedInstanceIdError

from streampca.sources.base import Committed


class PatchedCoordinator(ConsumerCoordinator):  # type: ignore[misc]
    """Keeps an assignment until a poll takes it, and the error of a member that was replaced."""

    replaced: FencedInstanceIdError | None = None
    _waiting: tuple[Any, Any] = (None, None)  # the group's generation and the assignment that no poll has taken

    async def _do_join_and_sync_async(self) -> Any:
        generation, assignment = self._waiting
        if assignment is None or generation is not self._generation:
            assignment = await super()._do_join_and_sync_async()
            self._waiting = self._generation, assignment
        return assignment

    async def _on_join_complete_async(self, *args: Any) -> None:
        self._waiting = None, None
        await super()._on_join_complete_async(*args)

    def _handle_heartbeat_response(self, *args: Any) -> None:
        try:
            super()._handle_heartbeat_response(*args)
        except FencedInstanceIdError as error:
            self.replaced = error
            raise


class PatchedRangeAssignor(RangePartitionAssignor):  # type: ignore[misc]
    """Assigns to all members: it groups them by whether they have an identity, but only neighbours."""

    @classmethod
    def assign(cls, cluster: Any, members: Iterable[Any]) -> Any:
        return super().assign(cluster, sorted(members, key=lambda member: member.group_instance_id is None))


group.ConsumerCoordinator = PatchedCoordinator


def rejoin_group(consumer: KafkaConsumer) -> None:
    """Ask for a rebalance at the next poll."""
    consumer._coordinator.request_rejoin()


def raise_if_replaced(consumer: KafkaConsumer) -> None:
    """Raise `FencedInstanceIdError` if another member has joined with the consumer's `group_instance_id`."""
    if consumer._coordinator.replaced is not None:
        raise consumer._coordinator.replaced


def committed_offsets(
    consumer: KafkaConsumer, partitions: Iterable[TopicPartition], timeout_ms: int
) -> dict[int, Committed]:
    """Those partitions of one topic for which the group has committed an offset."""
    consumer._coordinator._offset_fetch_futures.clear()
    offsets = consumer._coordinator.fetch_committed_offsets(list(partitions), timeout_ms=timeout_ms)
    # librdkafka commits the zero at the end of a C string, too.
    return {tp.partition: Committed(at.offset, (at.metadata or "").rstrip("\0")) for tp, at in offsets.items()}


def is_member(consumer: KafkaConsumer) -> bool:
    """Return whether the group is settled and counts the consumer in."""
    return bool(consumer._coordinator.stable())
