"""Which offset of each partition is read next, and whether the log still has the record before it.

If the last record before a position is known, the client begins to fetch with this record, and it is compared. If the
log was cut and has grown again, it holds another record at this offset. If compaction has removed the record, it cannot
be compared. A broker that does not find the position may be a replica that lags behind for a moment. So the record that
was read last is compared then, too, and only another record shows that the log was cut.
"""

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from streampca.formats.record import LastRecord, Record, last_of
from streampca.sources.events import Records

EARLIEST = -2  # position of the earliest record, whose offset is not known yet; librdkafka's number for it
UNKNOWN = -1  # an offset that the client does not know


class Reached(NamedTuple):
    """How far a partition was fetched, or returned by `poll`."""

    next: int  # the next offset; may be EARLIEST or UNKNOWN
    end: int  # the end of the partition, as last reported; may be UNKNOWN


class ReadPositions:
    """The positions of the partitions that are being read. The module's docstring says why records are compared."""

    def __init__(self) -> None:
        self.by_partition: dict[int, Reached] = {}
        # The last records before the positions, by partition: those to compare with the log, and all; None: unknown.
        self.records_to_compare: dict[int, LastRecord] = {}
        self._last_records: dict[int, LastRecord | None] = {}
        # Positions that brokers did not find; their partitions are not in `by_partition`.
        self.out_of_range: dict[int, int] = {}

    def start(self, partition: int, position: int | None, last: LastRecord | None) -> None:
        """Begin to read a partition from a position; None means the earliest record.

        `last` is the last record before the position; None if it is unknown.
        """
        self.stop(partition)
        self.by_partition[partition] = Reached(next=EARLIEST if position is None else position, end=UNKNOWN)
        if last is not None:
            self.records_to_compare[partition] = last
        self._last_records[partition] = last

    def stop(self, partition: int) -> None:
        """Do not read a partition any more."""
        self.by_partition.pop(partition, None)
        self.records_to_compare.pop(partition, None)
        self._last_records.pop(partition, None)
        self.out_of_range.pop(partition, None)

    def fetch_offset(self, partition: int) -> int:
        """Return the offset to fetch first: the position, or the offset of the record to compare."""
        to_compare = self.records_to_compare.get(partition)
        return self.by_partition[partition].next if to_compare is None else to_compare.offset

    def mark_out_of_range(self, partition: int) -> None:
        """Stop reading a partition, since a broker did not find the position.

        The log may have been cut, so the last record that was read must be compared with the log.
        """
        last = self._last_records.get(partition)
        if partition in self.by_partition and last is not None:
            self.records_to_compare[partition] = last
        self.mark_cut(partition)

    def mark_cut(self, partition: int) -> None:
        """Stop reading a partition, since the records before its position were cut from the end of the log."""
        if partition in self.by_partition:  # otherwise it was stopped already
            self.out_of_range[partition] = self.by_partition.pop(partition).next

    def take_records(self, partition: int, records: Sequence[Record], fetched: Reached) -> Records | None:
        """Move a partition's position past new records, and return the event for them.

        Return None if nothing is new, or the last record before the position must still be compared with the log.
        """
        before = self.by_partition[partition]
        if partition in self.records_to_compare:
            may_read_on = self._compare_last_record(partition, records, fetched)
            if not may_read_on:
                return None
            first_new = bisect.bisect_left(records, before.next, key=lambda record: record.offset)
            records = records[first_new:]
        after = _advance(before, records, fetched)
        if after == before:
            return None
        self.by_partition[partition] = after
        if records:
            self._last_records[partition] = last_of(records)
        return Records(partition=partition, records=records, next=after.next, end=after.end)

    def _compare_last_record(self, partition: int, records: Sequence[Record], fetched: Reached) -> bool:
        """Compare the last record that was read with the log, and return whether the partition may be read on.

        Return False if the log holds another record at its offset, and while the client has not fetched so far.
        """
        position = self.by_partition[partition].next
        last = self.records_to_compare[partition]
        is_offset_fetched = bool(records) and records[0].offset == last.offset
        is_another_record = is_offset_fetched and records[0].leader_epoch != last.leader_epoch
        if is_another_record:
            self.mark_cut(partition)
            del self.records_to_compare[partition]
            return False
        log_ends_before_position = 0 <= fetched.end <= fetched.next < position  # a negative end is unknown
        if log_ends_before_position:
            self.mark_out_of_range(partition)
            return False
        # Compaction may have removed the record: then `records` begin with a later one.
        has_fetched_past_last = bool(records) or fetched.next > last.offset
        if has_fetched_past_last:
            del self.records_to_compare[partition]
        return has_fetched_past_last


def _advance(before: Reached, records: Sequence[Record], fetched: Reached) -> Reached:
    """Return how far a partition is read after these records; `before` if its position or its end is unknown."""
    after_records = records[-1].offset + 1 if records else UNKNOWN
    next_offset = max(before.next, fetched.next, after_records)  # unknown offsets are negative
    end = fetched.end if fetched.end >= 0 else before.end  # librdkafka forgets the end when a fetch fails
    is_end_known = end >= 0 or bool(records)
    if next_offset < 0 or not is_end_known:
        return before
    return Reached(next=next_offset, end=max(end, next_offset))
