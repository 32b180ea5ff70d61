"""Compares the first records of a partition with the configured type of numbers, before any of them is handled.

Raw bytes of another type are numbers too, and a single vector does not show that. So the first records of a partition
are held back until 100 of them have been compared with the configured type, or for a minute; nothing is learned, sent
or rejected before. Records that name the type of their numbers are not held back.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from streampca.errors import RejectLimitError
from streampca.formats.record import Record
from streampca.pca.arrays import Array
from streampca.sources.events import Vectors

FIRST_RECORDS = 100  # records of a partition that are compared
_LONGEST_HOLD_S = 60.0  # from then on, first records are handled, although fewer than `FIRST_RECORDS` have come


@dataclass
class _PartitionStart:
    """What is known of the first records of one partition."""

    samples: list[Array] = field(default_factory=list)  # numbers of the records that do not name their type
    compared: int = 0  # number of records that were compared
    next_to_compare: int = 0  # offset
    is_held_back: bool = False  # records were compared but not handled, so they must be read again
    is_minute_over: bool = False  # records have waited for a minute: from now on, fewer than 100 are enough
    minute_ends_at: float | None = None  # monotonic seconds; None: the minute has not begun

    @property
    def has_enough(self) -> bool:
        return self.compared >= FIRST_RECORDS


class Comparison(Protocol):
    """Compares the numbers of records that do not name their type, as `formats.codec.Codec` does."""

    def sample_untyped(self, records: Sequence[Record]) -> list[Array]:
        """Return numbers of each vector whose record does not name their type: all (d,), or a sample."""

    def explain_wrong_type(self, samples: Sequence[Array]) -> str:
        """Return why these numbers cannot be what was sent; "" if they can."""


class FirstRecords:
    """Compares the first records of partitions with the configured type, before any of them is handled.

    Only their numbers are kept. Records that cannot be handled yet are dropped, and read again later.
    """

    def __init__(self, topic: str, comparison: Comparison) -> None:
        self._topic = topic
        self._comparison = comparison
        self._starts: dict[int, _PartitionStart] = {}  # by partition; only while its first records are compared

    def begin(self, partitions: Collection[int]) -> None:
        """Compare the next records of these partitions, which are their first ones."""
        for partition in partitions:
            self._starts[partition] = _PartitionStart()

    def forget(self, partitions: Collection[int]) -> None:
        """Compare no more records of these partitions."""
        for partition in partitions:
            self._starts.pop(partition, None)

    def holds_back(self, partition: int) -> bool:
        """Whether records of this partition were compared and not handled."""
        return partition in self._starts and self._starts[partition].is_held_back

    def may_handle(self, batch: Vectors) -> bool:
        """Compare a batch's first records with the configured type, and return whether the batch may be handled.

        The first of these cases decides:

        1. The partition's first records were handled already: the batch is handled.
        2. Earlier records of the partition are held back: the batch must wait, since they must be handled first.
        3. 100 records were compared: the batch is handled, and no more records are compared.
        4. A minute is over, or all compared records name the type of their numbers: the batch is handled.
        5. Otherwise, the batch is held back.

        The caller drops a batch that is not handled, and reads its records again later. Raises `RejectLimitError` if
        the records cannot be of the configured type.
        """
        start = self._starts.get(batch.partition)
        if start is None:  # case 1
            return True
        self._compare(start, batch)  # also in case 2: the records of a batch that must wait count among the 100
        if start.is_held_back:  # case 2, until `take_due` ends it and the records are read again
            return False
        if start.has_enough:  # case 3
            self.forget([batch.partition])
            return True
        # Case 4 or 5. Only records that do not name their type give samples.
        has_untyped_records = bool(start.samples)
        start.is_held_back = has_untyped_records and not start.is_minute_over
        return not start.is_held_back

    def take_due(self, now: float) -> list[int]:
        """Return the partitions whose held-back records must be read again now, and hold them back no longer.

        A partition is due when 100 of its records were compared with the configured type of numbers, or when a minute
        is over. The minute begins with the first call after its records were held back. `now` is in monotonic seconds.
        """
        due = []
        for partition, start in self._starts.items():
            if not start.is_held_back:
                continue
            if start.minute_ends_at is None:
                start.minute_ends_at = now + _LONGEST_HOLD_S
            # When the minute is over, `may_handle` accepts fewer than 100 compared records.
            start.is_minute_over = now >= start.minute_ends_at
            if start.is_minute_over or start.has_enough:
                start.is_held_back = False
                due.append(partition)
        return due

    def _compare(self, start: _PartitionStart, batch: Vectors) -> None:
        """Compare a batch's records with the configured type: only the first 100, and each only once.

        Raises `RejectLimitError` if they cannot be of this type.
        """
        not_compared = [index for index, record in enumerate(batch.records) if record.offset >= start.next_to_compare]
        still_needed = FIRST_RECORDS - start.compared
        candidates = not_compared[:still_needed]
        # A record whose schema is not registered yet cannot be compared. It does not count among the 100: a record of
        # a later batch is compared instead.
        rejects = batch.decoded.rejects
        unknown_schema = {reject.index for reject in rejects if reject.reason == "unknown_schema"}
        records = [batch.records[index] for index in candidates if index not in unknown_schema]
        start.compared += len(records)
        start.next_to_compare = max(start.next_to_compare, batch.next)
        start.samples += self._comparison.sample_untyped(records)  # leaves out records that name their number type
        why_wrong_type = self._comparison.explain_wrong_type(start.samples)  # "" while no number contradicts the type
        if why_wrong_type:
            raise RejectLimitError(
                f"partition {batch.partition} of {self._topic}: the first records are not what was sent: "
                f"{why_wrong_type}"
            )
