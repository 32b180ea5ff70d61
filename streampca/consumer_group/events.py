"""The events in the life of a worker or of `streampca transform`.

The loops report them; `Member` (member.py) makes the member's state of them, which log, metrics, status reports and
health read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from streampca.errors import list_causes
from streampca.fold.model_file import PublishedModel
from streampca.formats.errors import NO_VALUE
from streampca.pca.arrays import F64
from streampca.pca.state import Losses
from streampca.sources.events import SourceStatus

if TYPE_CHECKING:  # transform learns nothing, so it need not wait for what learning imports
    from streampca.fold.fold import Fold


@dataclass(frozen=True, slots=True)
class StartDelayed:
    """The member cannot start yet, since what it waits for is away; sent at every attempt."""

    waits_for: Literal["the store", "brokers", "the schema registry", "model"]
    cause: str


@dataclass(frozen=True, slots=True)
class RestoreBegun:
    """The group has assigned this many partitions; each must be restored before it is read."""

    partitions: int


@dataclass(frozen=True, slots=True)
class PartitionsAssigned:
    """Assigned partitions are restored; they are read from these positions (-1: from the earliest record)."""

    positions: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class RestoreFailed:
    """Partitions are assigned, but cannot be restored from the store yet; the member will retry."""

    cause: str


@dataclass(frozen=True, slots=True)
class PartitionsReleased:
    """The group has revoked partitions; `lost` when it was too late to save them."""

    partitions: Sequence[int]
    lost: bool


@dataclass(frozen=True, slots=True)
class BatchLearned:
    """A batch of one partition was learned."""

    partition: int
    fold: "Fold"
    messages: int
    losses: Sequence[Losses]
    seconds: float
    lag: int  # messages of the partition still to come
    incomplete: int = 0  # vectors that lack entries
    # Milliseconds since 1970, of records outside 1990 to 2100; only with half_life_seconds, which depends on them.
    odd_timestamps: Sequence[int] = ()

    @property
    def next(self) -> int:
        """Next offset to read."""
        return self.fold.position


@dataclass(frozen=True, slots=True)
class BatchTransformed:
    """A batch of one partition was projected, and is part of the open transaction."""

    partition: int
    messages: int  # records that hold vectors
    outputs: int  # fewer than messages if some have no output
    version: int  # of the model
    lag: int  # messages of the partition still to come
    next: int  # offset


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """A transaction has ended; unless it was committed, its records will be read again."""

    outcome: str  # committed, aborted or failed
    # Records: all, read (with vectors, rejected or skipped), written, rejected, skipped. Timestamps: replaced.
    counts: Mapping[str, int]
    seconds: float
    cause: str = ""


@dataclass(frozen=True, slots=True)
class ModelVersionFixed:
    """The setting `model_version` lets the member project with this version alone; `pins` are its pins now."""

    version: int
    pins: Sequence[str]


@dataclass(frozen=True, slots=True)
class RecordRejected:
    """A record could not be learned or projected."""

    partition: int
    offset: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RecordsSkipped:
    """Records of a batch are skipped for a reason.

    `accepted_any` says whether the member has accepted a vector, now or before.
    """

    count: int
    accepted_any: bool
    reason: str = NO_VALUE


@dataclass(frozen=True, slots=True)
class ElementsReordered:
    """Elements of an array are at other indices than in earlier records, so `field` may read other numbers."""

    message: str


@dataclass(frozen=True, slots=True)
class FieldNamesWithoutNumbers:
    """No record so far has a number under some of the names in the setting `field`; they may be misspelt."""

    message: str


@dataclass(frozen=True, slots=True)
class PartitionStalled:
    """The partition's records cannot be decoded now, though nothing is wrong with them; sent at every attempt."""

    partition: int
    lag: int
    cause: str


@dataclass(frozen=True, slots=True)
class OffsetsSkipped:
    """Reading continues at `to`, since the records from `position` on were removed, or `truncated` from the log."""

    partition: int
    position: int
    to: int
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A checkpoint is on disk."""

    partition: int
    fold: "Fold"
    seconds: float


@dataclass(frozen=True, slots=True)
class CheckpointPostponed:
    """Checkpoints could not be saved, since a step of the save failed. Nothing is lost; the worker will retry."""

    cause: str
    failed_step: Literal["dead letters", "topic", "store"] = "store"


@dataclass(frozen=True, slots=True)
class ModelPublished:
    """A model is on disk."""

    model: PublishedModel
    seconds: float
    p_values: F64 | None = None  # of the messages newly scored for it
    event_time_ms: int = -1  # the latest event time of its partitions, milliseconds since 1970; -1: unknown


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """A model could not be published; the worker will retry."""

    cause: str


@dataclass(frozen=True, slots=True)
class PartitionsMissing:
    """What was learned of some partitions is lost, or cannot be read. They are not read, and models wait for them."""

    causes: Mapping[int, str]  # by partition; empty: no partition is missing any more

    @property
    def cause(self) -> str:
        return list_causes(self.causes)


@dataclass(frozen=True, slots=True)
class LoopTicked:
    """The loop has polled its source, as it does several times a second, whether there are records or not."""

    status: SourceStatus  # of the source now
    is_saving: bool = False  # a save has begun, and the store has not answered it yet


@dataclass(frozen=True, slots=True)
class MemberStopping:
    """The loop has ended."""

    cause: str


@dataclass(frozen=True, slots=True)
class MemberEnded:
    """The member has left the group, and ends; `cause` is empty unless an error has ended it."""

    cause: str


PartitionEvent = BatchLearned | BatchTransformed | PartitionStalled | OffsetsSkipped | CheckpointSaved

MemberEvent = (
    PartitionEvent | StartDelayed | RestoreBegun | PartitionsAssigned | RestoreFailed | PartitionsReleased
    | TransactionEnded | ModelVersionFixed | RecordRejected | RecordsSkipped | ElementsReordered
    | FieldNamesWithoutNumbers | CheckpointPostponed | ModelPublished
    | PublishFailed | PartitionsMissing | LoopTicked | MemberStopping | MemberEnded
)  # fmt: skip

Notify = Callable[[MemberEvent], object]
"""Takes each event when it has happened, in the loop's thread. It returns quickly and never raises."""
