"""Checks that the first records of a partition look like the configured type of numbers, before any is handled.

Raw bytes of another type are numbers too, and a single vector does not show that. So the first records of a partition
are held back until 100 of them have been checked, or for a minute; nothing is learned, sent or rejected before. Records
that name the type of their numbers are not held back.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from streampca.consumer_group.countdown import Countdown
from streampca.errors import RejectLimitError
from streampca.formats.record import Record
from streampca.pca.arrays import Array
from streampca.sources.events import Vectors

FIRST_RECORDS = 100  # records of a partition that are checked
_LONGEST_HOLD_S = 60.0  # from then on, first records are handled, although fewer than `FIRST_RECORDS` have come


@dataclass
class _PartitionCheck:
    """The check of one partition's first records."""

    untyped_samples: list[Array] = field(default_factory=list)  # numbers of the records that do not name their type
    checked: int = 0  # number of records that were checked
    next_to_check: int = 0  # offset
    is_held_back: bool = False  # records were checked but not handled, so they must be read again
    wait: Countdown = field(default_factory=lambda: Countdown(_LONGEST_HOLD_S))  # of records that are held back
    is_wait_over: bool = False  # from then on, fewer than 100 records are enough

    @property
    def has_enough_records(self) -> bool:
        return self.checked >= FIRST_RECORDS


class TypeChecker(Protocol):
    """Checks the numbers of records that do not name their type, as `formats.codec.Codec` does."""

    def sample_untyped(self, records: Sequence[Record]) -> list[Array]:
        """Return numbers of each vector whose record does not name their type: all (d,), or a sample."""

    def explain_wrong_type(self, samples: Sequence[Array]) -> str:
        """Return why these numbers cannot be what was sent; "" if they can."""


class FirstRecords:
    """Checks that the first records of partitions look like the configured type, before any of them is handled.

    Only their numbers are kept. Records that cannot be handled yet are dropped, and read again later.
    """

    def __init__(self, topic: str, type_checker: TypeChecker) -> None:
        self._topic = topic
        self._type_checker = type_checker
        self._checks: dict[int, _PartitionCheck] = {}  # by partition; only while its first records are checked

    def begin_checks(self, partitions: Collection[int]) -> None:
        """Check the next records of these partitions as first records."""
        for partition in partitions:
            self._checks[partition] = _PartitionCheck()

    def forget(self, partitions: Collection[int]) -> None:
        """Check no more records of these partitions."""
        for partition in partitions:
            self._checks.pop(partition, None)

    def holds_back(self, partition: int) -> bool:
        """Whether records of this partition were checked and not handled."""
        return partition in self._checks and self._checks[partition].is_held_back

    def check(self, batch: Vectors) -> bool:
        """Check a batch if it holds first records of its partition, and return whether the batch may be handled.

        If the batch may not be handled, the partition is held back: the caller drops the records of this batch, and
        reads them again when `take_due` returns the partition. Later batches are still checked until then. Raises
        `RejectLimitError`.
        """
        partition_check = self._checks.get(batch.partition)
        if partition_check is None:  # the first records were handled before
            return True
        self._check_type(partition_check, batch)
        if partition_check.is_held_back:  # earlier records were dropped, and must be handled before this batch
            return False
        if partition_check.has_enough_records:
            self.forget([batch.partition])
            return True
        # Too few records were checked so far. Wait for more, unless all of them name their type or the wait is over.
        has_untyped_records = len(partition_check.untyped_samples) > 0
        may_be_handled = partition_check.is_wait_over or not has_untyped_records
        partition_check.is_held_back = not may_be_handled
        return may_be_handled

    def take_due(self, now: float) -> list[int]:
        """Return the partitions whose held-back records must be read again now, and hold them back no longer.

        Records are held back until 100 of the partition were checked, or for a minute. `now` is in monotonic seconds.
        """
        due = []
        for partition, partition_check in self._checks.items():
            if not partition_check.is_held_back:
                continue
            partition_check.is_wait_over = partition_check.wait.is_over(now)
            if partition_check.is_wait_over or partition_check.has_enough_records:
                partition_check.is_held_back = False
                due.append(partition)
        return due

    def _check_type(self, partition_check: _PartitionCheck, batch: Vectors) -> None:
        """Check the records of a batch that are among the first `FIRST_RECORDS` of their partition.

        Raises `RejectLimitError` if the numbers checked so far do not look like the configured type of numbers.
        """
        records = _select_unchecked(partition_check, batch)
        partition_check.checked += len(records)
        # When this batch is read again, its records are not checked a second time.
        partition_check.next_to_check = max(partition_check.next_to_check, batch.next)
        # Take samples of the numbers, except from values that name the type of their numbers.
        partition_check.untyped_samples += self._type_checker.sample_untyped(records)
        # "" if the type may be right.
        why_wrong_type = self._type_checker.explain_wrong_type(partition_check.untyped_samples)
        if why_wrong_type:
            raise RejectLimitError(
                f"partition {batch.partition} of {self._topic}: the first records do not look like the numbers that "
                f"were sent: {why_wrong_type}"
            )


def _select_unchecked(partition_check: _PartitionCheck, batch: Vectors) -> list[Record]:
    """Return the records of a batch that must be checked, and that were not checked at an earlier reading."""
    next_to_check = partition_check.next_to_check
    unchecked_indices = [index for index, record in enumerate(batch.records) if record.offset >= next_to_check]
    still_needed = FIRST_RECORDS - partition_check.checked
    next_indices = unchecked_indices[:still_needed]
    # Records of an unknown schema cannot be checked. They are left out, and later batches bring others instead.
    rejects = batch.decoded.rejects
    unknown_schema = {reject.index for reject in rejects if reject.reason == "unknown_schema"}
    return [batch.records[index] for index in next_indices if index not in unknown_schema]
