"""What a member knows of the partitions that it owns."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from streampca.consumer_group.events import (
    BatchLearned,
    BatchTransformed,
    CheckpointSaved,
    MemberEvent,
    OffsetsSkipped,
    PartitionEvent,
    PartitionsAssigned,
    PartitionsReleased,
    PartitionStalled,
    TransactionEnded,
)

if TYPE_CHECKING:  # transform learns nothing, so it need not wait for what learning imports
    from streampca.fold.fold import Fold

_RANGE_SIZE = 32  # partitions


class PartitionState(NamedTuple):
    """What a member knows of one partition; times are monotonic seconds."""

    position: int = -1  # next offset to read; -1: the earliest record
    lag: int | None = None  # messages behind the log's end; None until a batch was read since the assignment
    stalled_since: float | None = None  # None: its records can be decoded
    saved_up_to: int = -1  # the next offset to read if the member restarted now
    unsaved_since: float | None = None  # when the oldest unsaved record was read; None: no record waits for a save
    fold: "Fold | None" = None  # of a worker, after the last batch; None: no batch yet, or a member of transform

    def after(self, event: PartitionEvent, now: float) -> "PartitionState":
        """Return the state after an event of this partition; `now` is in monotonic seconds.

        `unsaved_since` is when the oldest record that no save contains was read. After an event that neither reads nor
        saves records, `unsaved_since` is unchanged, or None if all records are saved (`_recheck_unsaved_since`).
        """
        match event:
            case PartitionStalled(lag=lag):
                return self._replace(
                    lag=lag,
                    stalled_since=now if self.stalled_since is None else self.stalled_since,
                    unsaved_since=self._recheck_unsaved_since(),
                )
            case OffsetsSkipped(to=to):
                return self._replace(position=to, unsaved_since=self._recheck_unsaved_since())
            case CheckpointSaved(fold=fold):
                is_all_saved = self.position <= fold.position
                # Records after the checkpoint count as read now: when they were read is not known.
                unsaved_since = None if is_all_saved else now
                return self._replace(saved_up_to=fold.position, unsaved_since=unsaved_since)
            case BatchLearned() | BatchTransformed():
                return self._replace(
                    position=event.next,
                    lag=event.lag,
                    stalled_since=None,
                    unsaved_since=now if self.unsaved_since is None else self.unsaved_since,  # the older one counts
                    fold=event.fold if isinstance(event, BatchLearned) else self.fold,
                )

    def _recheck_unsaved_since(self) -> float | None:
        """Return `unsaved_since` or, if all records before the position are saved, None.

        After a failed transaction, the position is the saved one again, but `unsaved_since` stays, since the same
        records are read again. If they were lost, or cannot be decoded, no record waits for a save any more.
        """
        is_all_saved = self.position == self.saved_up_to
        return None if is_all_saved else self.unsaved_since

    @property
    def is_at_end(self) -> bool:
        """Whether the partition was read to its end since the assignment."""
        return self.lag is not None and self.lag <= 0


class _PartitionRange(dict[int, PartitionState]):
    """The states of up to 32 partitions with neighbouring numbers, by number. It is not changed after it is filled."""

    @cached_property
    def unsaved_since(self) -> float | None:
        """When the oldest unsaved record of these partitions was read; None if no record waits for a save.

        It is cached, since the loop asks for it several times a second. A range is replaced when its states change.
        """
        return _find_earliest(partition_state.unsaved_since for partition_state in self.values())


class PartitionStates(Mapping[int, PartitionState]):
    """The states of partitions, by partition number: an immutable mapping.

    A member may own a thousand partitions, and each batch changes one of them. Copying all states for each batch would
    be slow. So the states lie in ranges of 32 partition numbers, and `|` copies only the ranges that change.
    """

    def __init__(self, ranges: Mapping[int, _PartitionRange] | None = None) -> None:
        self._ranges = ranges or {}  # by partition number // 32

    def after(self, event: MemberEvent, now: float) -> "PartitionStates":
        """Return the states after an event; `now` is in monotonic seconds."""
        match event:
            case PartitionsAssigned(positions):
                return self._after_assignment(positions)
            case PartitionsReleased(released):
                kept_partitions = self.keys() - released
                return PartitionStates() | {partition: self[partition] for partition in kept_partitions}
            case TransactionEnded("committed"):
                return self._after_commit()
        if isinstance(event, PartitionEvent):
            state = self.get(event.partition, PartitionState())
            return self | {event.partition: state.after(event, now)}
        return self

    def _after_assignment(self, positions: Mapping[int, int]) -> "PartitionStates":
        """Return the states after partitions were assigned and restored, each at its position.

        `unsaved_since` is kept: after a failed transaction, partitions are restored, and their records still wait for a
        save.
        """
        restored_states = {}
        for partition, position in positions.items():
            state = self.get(partition, PartitionState())
            restored_states[partition] = state._replace(position=position, lag=None, saved_up_to=position)
        return self | restored_states

    def _after_commit(self) -> "PartitionStates":
        """Return the states after a transaction was committed: all records that were read are saved."""
        saved_states = {}
        for partition, state in self.items():
            if state.unsaved_since is not None:
                saved_states[partition] = state._replace(saved_up_to=state.position, unsaved_since=None)
        return self | saved_states

    @property
    def are_stalled(self) -> bool:
        """Whether records of any partition cannot be decoded for now."""
        return any(state.stalled_since is not None for state in self.values())

    @property
    def unsaved_since(self) -> float | None:
        """When the oldest unsaved record was read, in monotonic seconds; None if no record waits for a save."""
        return _find_earliest(partition_range.unsaved_since for partition_range in self._ranges.values())

    def values(self) -> Iterator[PartitionState]:  # type: ignore[override]  # faster than Mapping's
        return chain.from_iterable(partition_range.values() for partition_range in self._ranges.values())

    def __getitem__(self, number: int) -> PartitionState:
        return self._ranges[number // _RANGE_SIZE][number]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._ranges.values())

    def __len__(self) -> int:
        return sum(map(len, self._ranges.values()))

    def __or__(self, changed: Mapping[int, PartitionState]) -> "PartitionStates":
        """Return these states with those that have changed; only their ranges are copied."""
        ranges = dict(self._ranges)
        for number, state in changed.items():
            index = number // _RANGE_SIZE
            copied_range = _PartitionRange(ranges.get(index, {}))  # earlier `PartitionStates` share the old range
            copied_range[number] = state
            ranges[index] = copied_range
        return PartitionStates(ranges)


def _find_earliest(times: Iterable[float | None]) -> float | None:
    """Return the earliest of the times that are not None; None if there is none."""
    return min((time for time in times if time is not None), default=None)
