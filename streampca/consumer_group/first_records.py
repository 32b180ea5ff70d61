"""Compares the first records of a partition with the configured type of numbers, before any of them is handled.

Raw bytes of another type are numbers too, and a single vector does not show that. So the first records of a partition
are held back until 100 of them have been compared with the configured type, or for a minute; nothing is learned, sent
or rejected before. Records that name the type of their numbers are not held back.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from streampca.consumer_group.countdown import Countdown
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
    wait: Countdown = field(default_factory=lambda: Countdown(_LONGEST_HOLD_S))  # of records that are held back
    is_wait_over: bool = False  # from then on, fewer than 100 records are enough

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

        Otherwise the caller reads it again later. Raises `RejectLimitError`.
        """
        start = self._starts.get(batch.partition)
        if start is None:
            return True
        self._compare(start, batch)  # a batch that must wait counts, too
        if start.is_held_back:  # earlier records come first
            return False
        if start.has_enough:
            self.forget([batch.partition])
            return True
        # Records that name their type need no comparison.
        has_untyped_records = bool(start.samples)
        start.is_held_back = has_untyped_records and not start.is_wait_over
        return not start.is_held_back

    def take_due(self, now: float) -> list[int]:
        """Return the partitions whose held-back records must be read again now, and hold them back no longer.

        `now` is in monotonic seconds.
        """
        due = []
        for partition, start in self._starts.items():
            if not start.is_held_back:
                continue
            start.is_wait_over = start.wait.is_over(now)
            if start.is_wait_over or start.has_enough:
                start.is_held_back = False
                due.append(partition)
        return due

    def _compare(self, start: _PartitionStart, batch: Vectors) -> None:
        """Compare the first 100 records of a partition with the configured type. Raises `RejectLimitError`."""
        records = _select_to_compare(start, batch)
        start.compared += len(records)
        start.next_to_compare = max(start.next_to_compare, batch.next)
        start.samples += self._comparison.sample_untyped(records)  # only of records that name no type
        why_wrong_type = self._comparison.explain_wrong_type(start.samples)
        if why_wrong_type:
            raise RejectLimitError(
                f"partition {batch.partition} of {self._topic}: the first records are not what was sent: "
                f"{why_wrong_type}"
            )


def _select_to_compare(start: _PartitionStart, batch: Vectors) -> list[Record]:
    """Return the records of a batch that belong to the first 100 of the partition and were not compared yet."""
    not_compared = [index for index, record in enumerate(batch.records) if record.offset >= start.next_to_compare]
    still_needed = FIRST_RECORDS - start.compared
    candidates = not_compared[:still_needed]
    # A record of an unknown schema cannot be compared, so it does not count.
    rejects = batch.decoded.rejects
    unknown_schema = {reject.index for reject in rejects if reject.reason == "unknown_schema"}
    return [batch.records[index] for index in candidates if index not in unknown_schema]
