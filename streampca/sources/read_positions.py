"""Which offset of each partition is read next, and whether the log still has the record before it.

If the last record before a position is known, the client begins to fetch with this record, and it is compared. If the
log was truncated and has grown again, it holds another record at this offset. If compaction has removed the record, it
cannot be compared. A broker that does not find the position may be a replica that lags behind for a moment. So the
record that was read last is compared then, too, and only another record shows that the log was truncated.
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
        # Each partition that is being read → its position, and the end of the partition.
        self.by_partition: dict[int, Reached] = {}
        # Partition → the last record before its position; None if this record is unknown.
        self._last_records: dict[int, LastRecord | None] = {}
        # Partition → the last record before its position, which must be fetched again: if the log holds another record
        # at this offset, the log was truncated. Until the two are compared, no later records are returned.
        self.records_to_compare: dict[int, LastRecord] = {}
        # Partition → the position at which reading has stopped, since a broker did not find it in the log.
        self.out_of_range: dict[int, int] = {}

    def start(self, partition: int, position: int | None, last: LastRecord | None) -> None:
        """Begin to read a partition from a position; None means the earliest record.

        `last` is the last record before the position; None if it is unknown.
        """
        self.stop(partition)
        self.by_partition[partition] = Reached(next=EARLIEST if position is None else position, end=UNKNOWN)
        self._last_records[partition] = last
        if last is not None:
            self.records_to_compare[partition] = last  # it is fetched first, to notice a truncated log

    def stop(self, partition: int) -> None:
        """Do not read a partition any more."""
        self.by_partition.pop(partition, None)
        self.records_to_compare.pop(partition, None)
        self._last_records.pop(partition, None)
        self.out_of_range.pop(partition, None)

    def offset_to_fetch_from(self, partition: int) -> int:
        """Return the offset to fetch first: the position, or the offset of the record to compare."""
        to_compare = self.records_to_compare.get(partition)
        return self.by_partition[partition].next if to_compare is None else to_compare.offset

    def stop_as_out_of_range(self, partition: int) -> None:
        """Stop reading a partition, since a broker did not find its position. Keep the position in `out_of_range`.

        The log was perhaps truncated. Comparing the last record that was read with the log will tell.
        """
        last = self._last_records.get(partition)
        if partition in self.by_partition and last is not None:
            self.records_to_compare[partition] = last
        self._move_to_out_of_range(partition)

    def stop_as_truncated(self, partition: int) -> None:
        """Stop reading a partition whose log was truncated before the position. Keep the position in `out_of_range`."""
        self.records_to_compare.pop(partition, None)  # another comparison would tell nothing new
        self._move_to_out_of_range(partition)

    def _move_to_out_of_range(self, partition: int) -> None:
        if partition in self.by_partition:  # without a position, reading was stopped already
            self.out_of_range[partition] = self.by_partition.pop(partition).next

    def take_records(self, partition: int, records: Sequence[Record], fetched: Reached) -> Records | None:
        """Move a partition's position past new records, and return the event for them.

        `fetched` is how far the client has fetched. Return None if nothing is new. If the last record before the
        position must be compared with the log, return None until the comparison has shown that the log was not
        truncated: after a truncation, other records may stand at the offsets before the position.
        """
        before = self.by_partition[partition]
        if partition in self.records_to_compare:
            may_read_on = self._compare_last_record(partition, records, fetched)
            if not may_read_on:
                return None
            # Leave out the last record before the position, which was fetched again only to be compared.
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

        - If the log holds another record at the offset of the last record, the log was truncated: stop, return False.
        - If the log ends before the position, the position is out of range: stop, return False.
        - Until the client has fetched the offset of the last record, return False.

        `records` were fetched from the offset of the last record on. If compaction has removed it, they begin later.
        `fetched` is the client's next offset, and the end of the partition as the client knows it.
        """
        position = self.by_partition[partition].next
        last = self.records_to_compare[partition]
        is_offset_fetched = bool(records) and records[0].offset == last.offset
        # Two records at one offset differ in their leader epoch: the number of the leader that wrote them.
        if is_offset_fetched and records[0].leader_epoch != last.leader_epoch:
            self.stop_as_truncated(partition)
            return False
        has_fetched_to_end = 0 <= fetched.end <= fetched.next  # a negative end is unknown
        if has_fetched_to_end and fetched.next < position:
            self.stop_as_out_of_range(partition)  # keeps the record: if the log grows again, the record is compared
            return False
        # Also done if compaction has removed the last record: the client has passed its offset, so `records` begin with
        # a later record, or at least the next offset is later.
        is_comparison_done = bool(records) or fetched.next > last.offset
        if is_comparison_done:
            del self.records_to_compare[partition]
        return is_comparison_done


def _advance(before: Reached, records: Sequence[Record], fetched: Reached) -> Reached:
    """Return the position and the end of a partition after these records have been read.

    `before` is how far it was read before, and `fetched` how far the client has fetched. If the new position or the new
    end is unknown, return `before`.
    """
    after_records = records[-1].offset + 1 if records else UNKNOWN
    next_offset = max(before.next, fetched.next, after_records)  # unknown offsets are negative
    reported_end = fetched.end if fetched.end >= 0 else before.end  # librdkafka forgets the end when a fetch fails
    is_end_known = reported_end >= 0 or bool(records)  # the partition reaches at least to the end of these records
    if next_offset < 0 or not is_end_known:
        return before
    # The client may have fetched past an end that was reported earlier, so the end is at least the next offset.
    return Reached(next=next_offset, end=max(reported_end, next_offset))
