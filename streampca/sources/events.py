"""The events of a source: changes of its partitions, their records, offsets out of range; and decoding of records."""

from collections.abc import Sequence
from dataclasses import dataclass

from streampca.formats.codec import LARGE_BATCH_BYTES, Codec
from streampca.formats.record import Batch, Record, count_value_bytes


@dataclass(frozen=True, slots=True)
class Assigned:
    """These partitions were assigned to us. No records of them are returned before `Source.seek` is called for them."""

    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Revoked:
    """These partitions are taken from us. They are ours until the next `poll` or `close`: save them now."""

    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Lost:
    """These partitions already belong to another worker: drop what was learned since the last checkpoint."""

    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Records:
    """The next records of one partition in the order of their offsets.

    `next` is the position after them. Offsets without a record that a reader sees, such as those of aborted
    transactions, are passed, so an event may have no records and only a new `next`. `end` is the partition's high
    watermark, so records of an unfinished transaction count as lag.
    """

    partition: int
    records: Sequence[Record]
    next: int
    end: int

    @property
    def nbytes(self) -> int:
        return count_value_bytes(self.records)


@dataclass(frozen=True, slots=True, eq=False)
class Vectors(Batch):
    """Decoded `Records`: vectors and rejects."""

    partition: int
    end: int  # high watermark of the partition


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Records that cannot be decoded now, for example because the schema registry is away."""

    partition: int
    position: int  # offset of the first of these records
    end: int  # high watermark of the partition
    cause: str


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The log does not hold the position of a partition. No records are returned before `Source.seek` is called.

    If the log was truncated and has grown again, it holds other records than those that were read. Then `diverged` is
    an offset at which they differ. They may also differ at earlier offsets, which not every client reports.
    """

    partition: int
    position: int
    earliest: int  # first offset of the log
    latest: int  # its end
    diverged: int | None = None  # None: the log was not seen to hold other records


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """Whether a source is connected, and a member of its group."""

    connected: bool  # a broker has answered recently
    member: bool  # the group is stable and counts us in, with partitions or without
    cause: str = ""  # the last error of a connection, while no broker answers or the group is not joined
    blocked_since: float | None = None  # seconds since 1970 from when on an open transaction has blocked a partition


Event = Assigned | Revoked | Lost | Records | OutOfRange


def decode_records(codec: Codec, event: Records) -> Vectors | Undecoded:
    """Decode the records of one event.

    If the vectors need much memory, only the first records are decoded: the result's `next` is then the offset of the
    first record that is left. Return `Undecoded` while the schema registry is away. Raises `SourceError` if the
    registry refuses access.
    """
    high_watermark = event.end
    try:
        batch = codec.decode_batch(event.records, next_offset=event.next, stop_after_bytes=LARGE_BATCH_BYTES)
    except TimeoutError as error:
        return Undecoded(
            partition=event.partition,
            position=event.records[0].offset,
            end=high_watermark,
            cause=str(error),
        )
    return Vectors(
        decoded=batch.decoded,
        timestamps=batch.timestamps,
        records=batch.records,
        next=batch.next,
        partition=event.partition,
        end=high_watermark,
    )
