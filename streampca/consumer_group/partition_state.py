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

_CHUNK_SIZE = 32  # partitions


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

        `unsaved_since` is when the oldest record that no save contains was read; None if all records are saved.
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

        A failed transaction sets the position back to the saved one, but keeps `unsaved_since`: its records are read
        again, and wait for a save since then. If they cannot be decoded now, or are lost, no record waits for a save.
        """
        is_all_saved = self.position == self.saved_up_to
        return None if is_all_saved else self.unsaved_since

    @property
    def is_at_end(self) -> bool:
        """Whether the partition was read to its end since the assignment."""
        return self.lag is not None and self.lag <= 0


class _Chunk(dict[int, PartitionState]):
    """The states of up to 32 partitions, by partition number. A chunk in a `PartitionStates` is never changed."""

    @cached_property
    def unsaved_since(self) -> float | None:
        """When the oldest unsaved record of these partitions was read; None if no record waits for a save.

        The time is computed once, since the loop asks several times a second, and the chunk is not changed any more.
        """
        return _find_earliest(partition_state.unsaved_since for partition_state in self.values())


class PartitionStates(Mapping[int, PartitionState]):
    """The states of partitions, by partition number: an immutable mapping.

    A member may own a thousand partitions, and each batch changes one of them. Copying all states for each batch would
    be slow. So the states lie in chunks of 32 partitions, and `|` copies only the chunks that change.
    """

    def __init__(self, chunks: Mapping[int, _Chunk] | None = None) -> None:
        self._chunks = chunks or {}  # by partition number // 32

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
        return _find_earliest(chunk.unsaved_since for chunk in self._chunks.values())

    def values(self) -> Iterator[PartitionState]:  # type: ignore[override]  # faster than Mapping's
        return chain.from_iterable(chunk.values() for chunk in self._chunks.values())

    def __getitem__(self, number: int) -> PartitionState:
        return self._chunks[number // _CHUNK_SIZE][number]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._chunks.values())

    def __len__(self) -> int:
        return sum(map(len, self._chunks.values()))

    def __or__(self, changed: Mapping[int, PartitionState]) -> "PartitionStates":
        """Return these states with those that have changed; only their chunks are copied."""
        chunks = dict(self._chunks)
        for number, state in changed.items():
            index = number // _CHUNK_SIZE
            chunk = _Chunk(chunks.get(index, {}))  # earlier `PartitionStates` share the old chunk
            chunk[number] = state
            chunks[index] = chunk
        return PartitionStates(chunks)


def _find_earliest(times: Iterable[float | None]) -> float | None:
    """Return the earliest of the times that are not None; None if there is none."""
    return min((time for time in times if time is not None), default=None)
