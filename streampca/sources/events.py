"""The events of a source: changes of its partitions, their records, and gaps; and what decoding makes of records."""

from collections.abc import Sequence
from dataclasses import dataclass

from streampca.formats.codec import LARGE_BATCH, Codec
from streampca.formats.record import Batch, Record, values_of


@dataclass(frozen=True, slots=True)
class Assigned:
    """These partitions were assigned to us. Their records come after `Source.seek` was called for them."""

    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Revoked:
    """These partitions are about to be assigned to another worker; ours until the next `poll` or `close`: save now."""

    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Lost:
    """These partitions belong to another worker already: drop what was learned since the last checkpoint."""

    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Records:
    """The next records of one partition in the order of their offsets.

    `next` is the position after them. It may skip offsets without a record, and may advance with no records at all.
    `end` is the partition's high watermark (records of an unfinished transaction count as lag).
    """

    partition: int
    records: Sequence[Record]
    next: int
    end: int

    @property
    def nbytes(self) -> int:
        return sum(len(value) for value in values_of(self.records) if value is not None)


@dataclass(frozen=True, slots=True, eq=False)
class Vectors(Batch):
    """Decoded `Records`. Any of them may still be rejected, and is then a dead letter."""

    partition: int
    end: int


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Records that cannot be decoded for now, although nothing may be wrong with them."""

    partition: int
    position: int
    end: int  # of the partition's log
    cause: str


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The position is not in the log any more (or not yet). No records come until `Source.seek`.

    If the log was cut and has grown again, it holds other records than those that were read: at least from `diverged`
    on, and maybe from an earlier offset, which not every client reports.
    """

    partition: int
    position: int
    earliest: int
    latest: int
    diverged: int | None = None


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """A source's state in the cluster."""

    connected: bool  # a broker has answered recently
    member: bool  # of a stable group, with partitions or without
    cause: str = ""  # the last error of a connection, while no broker answers or the group is not joined
    blocked_since: float | None = None  # seconds since 1970: partitions end in a transaction that is open since then


Event = Assigned | Revoked | Lost | Records | OutOfRange


def decode_records(codec: Codec, event: Records) -> Vectors | Undecoded:
    """Decode the records of one event; `Undecoded` while the schema registry is away. Any thread may call it.

    Stops early, with `next` at the first record that is left, when the vectors have become large. Raises `SourceError`
    if the registry refuses access.
    """
    records = event.records
    try:
        batch = codec.batch_of(records, event.next, LARGE_BATCH)
    except TimeoutError as error:
        return Undecoded(event.partition, records[0].offset, event.end, str(error))
    return Vectors(batch.decoded, batch.timestamps, batch.records, batch.next, event.partition, event.end)
