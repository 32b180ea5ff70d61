"""The interface for writing records and the group's offsets in one transaction, so that both are there or neither.

The consumer group's metadata go with the offsets (KIP-447): a member that the group has given up cannot commit.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from streampca.sources.base import Committed
from streampca.sources.dead_letter_headers import Headers


class TransactionFailedError(Exception):
    """The transaction was not committed, or nobody knows: the offsets that the group has committed say which."""


class Outgoing(NamedTuple):
    """A record to be written; without a partition, its key decides."""

    topic: str
    partition: int | None
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp: int  # milliseconds since 1970; negative: the time of sending


OutgoingFields: TypeAlias = tuple[str, int | None, bytes | None, bytes | None, Headers, int]
"""The fields of an `Outgoing`: a plain tuple takes a quarter of its time, which counts where each record makes one."""


class Transactions(Protocol):
    """Writes records to topics and offsets to the group of one source, a transaction at a time.

    `send` and `commit` raise `TransactionFailedError`; then `recover` must succeed before the next call. All methods
    raise `SourceError` for errors that waiting cannot fix, and return within some seconds.
    """

    def partitions(self, topic: str) -> int:
        """The number of partitions of a topic; requested from a broker. Raises `TimeoutError`."""

    def recover(self) -> None:
        """Be ready for a transaction: end the one that failed, or that an earlier process of this id has left open.

        To be called before the first one, too. Raises `TimeoutError` while the brokers do not answer.
        """

    def send(self, records: Iterable[OutgoingFields]) -> None:
        """Add records to the transaction, which begins if none is open."""

    def commit(self, offsets: Mapping[int, Committed]) -> None:
        """Commit the records sent and these next offsets of the source's topic, with metadata of at most 4096 bytes.

        The offsets are of partitions that the source was assigned by its last event.
        """

    def abort(self) -> None:
        """Abort the open transaction, if there is one; never raises."""

    def close(self) -> None:
        """Abort the open transaction and close the connections, within 3 seconds."""
