"""What a member knows of the partitions that it owns."""

from collections.abc import Iterator, Mapping
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
        """Return the state after an event of this partition."""
        # A stall and lost records may follow a failed transaction, after which the position is back at the last save.
        # No record that was read waits for a save then.
        has_read_unsaved = self.position != self.saved_up_to
        unsaved_since = self.unsaved_since if has_read_unsaved else None
        match event:
            case PartitionStalled(lag=lag):
                return self._replace(lag=lag, stalled_since=self.stalled_since or now, unsaved_since=unsaved_since)
            case OffsetsSkipped(to=to):
                return self._replace(position=to, unsaved_since=unsaved_since)
            case CheckpointSaved(fold=fold):
                is_all_saved = self.position <= fold.position
                since = None if is_all_saved else now  # the rest was learned during the save
                return self._replace(saved_up_to=fold.position, unsaved_since=since)
            case BatchLearned() | BatchTransformed():
                since = now if self.unsaved_since is None else self.unsaved_since
                read = self._replace(position=event.next, lag=event.lag, stalled_since=None, unsaved_since=since)
                return read._replace(fold=event.fold) if isinstance(event, BatchLearned) else read

    @property
    def is_at_end(self) -> bool:
        """Whether the partition was read to its end since the assignment."""
        return self.lag is not None and self.lag <= 0


class PartitionStates(Mapping[int, PartitionState]):
    """The states of partitions, by partition number: an immutable mapping.

    A member may own a thousand partitions, and each batch changes one of them. Copying all states for each batch would
    be slow. So the states lie in chunks of 32 partitions, and `|` copies only the chunks that change.
    """

    def __init__(self, chunks: Mapping[int, Mapping[int, PartitionState]] | None = None) -> None:
        self._chunks = chunks or {}  # partition number // 32 → partition number → state

    def after(self, event: MemberEvent, now: float) -> "PartitionStates":
        """Return the states after an event; `now` is in monotonic seconds."""
        match event:
            case PartitionsAssigned(positions):
                # After a failed transaction, too: then `unsaved_since` stays, since its records still wait for a save.
                return self | {
                    p: self.get(p, PartitionState())._replace(position=position, lag=None, saved_up_to=position)
                    for p, position in positions.items()
                }
            case PartitionsReleased(partitions):
                return PartitionStates() | {p: self[p] for p in self.keys() - partitions}
            case TransactionEnded("committed"):
                unsaved = {p: state for p, state in self.items() if state.unsaved_since is not None}
                return self | {
                    p: state._replace(saved_up_to=state.position, unsaved_since=None) for p, state in unsaved.items()
                }
        if isinstance(event, PartitionEvent):
            state = self.get(event.partition, PartitionState())
            return self | {event.partition: state.after(event, now)}
        return self

    @property
    def are_stalled(self) -> bool:
        """Whether records of any partition cannot be decoded for now."""
        return any(state.stalled_since is not None for state in self.values())

    @property
    def unsaved_since(self) -> float | None:
        """When the oldest unsaved record was read, in monotonic seconds; None if no record waits for a save."""
        return min((state.unsaved_since for state in self.values() if state.unsaved_since is not None), default=None)

    def values(self) -> Iterator[PartitionState]:  # type: ignore[override]  # faster than Mapping's
        return chain.from_iterable(chunk.values() for chunk in self._chunks.values())

    def __getitem__(self, number: int) -> PartitionState:
        return self._chunks[number // _CHUNK_SIZE][number]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._chunks.values())

    def __len__(self) -> int:
        return sum(map(len, self._chunks.values()))

    def __or__(self, changed: Mapping[int, PartitionState]) -> "PartitionStates":
        chunks = dict(self._chunks)
        for number, state in changed.items():
            index = number // _CHUNK_SIZE
            chunks[index] = {**chunks.get(index, {}), number: state}  # a copy: other states share the chunk
        return PartitionStates(chunks)
