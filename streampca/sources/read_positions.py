"""Which offset of each partition is read next, and whether the log still has the record before it.

If the last record before a position is known, the client begins to fetch with this record, and it is compared. If the
log was cut and has grown again, it holds another record at this offset. If compaction has removed the record, it cannot
be compared. If a broker answers during reading that the log does not have the position, the record that was read last
is compared, too.
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
    """The positions of the partitions that are being read."""

    def __init__(self) -> None:
        self.by_partition: dict[int, Reached] = {}  # of each partition that is read: how far `poll` has returned it
        # If a log is cut and grows again, it holds another record before our position than the record that was read.
        # So this record is fetched once more and compared. Until then, it is in `uncompared_records`.
        self.uncompared_records: dict[int, LastRecord] = {}
        # The last record before each position, whether it was compared or not. It is absent if its epoch is unknown.
        self._last_records: dict[int, LastRecord] = {}
        # Positions from which the client could not read on. Their partitions are not in `by_partition` any more.
        self.out_of_range: dict[int, int] = {}

    def start(self, partition: int, position: int | None, last: LastRecord | None) -> None:
        """Begin to read a partition from a position; None means the earliest record.

        `last` is the last record that was read before the position, None if it is unknown. The client begins to fetch
        with this record. If the log now holds another record at this offset, the log was cut and has grown again.
        """
        self.stop(partition)  # forgets an earlier start
        self.by_partition[partition] = Reached(next=EARLIEST if position is None else position, end=UNKNOWN)
        if last is not None:
            self.uncompared_records[partition] = last  # until the comparison
        self._set_last_record(partition, last)  # also afterwards: `mark_out_of_range` may need it

    def stop(self, partition: int) -> None:
        """Do not read a partition any more."""
        self.by_partition.pop(partition, None)
        self.uncompared_records.pop(partition, None)
        self._last_records.pop(partition, None)
        self.out_of_range.pop(partition, None)

    def fetch_offset(self, partition: int) -> int:
        """Return the offset to fetch first: if the last record before the position must be compared, its offset."""
        uncompared = self.uncompared_records.get(partition)
        return self.by_partition[partition].next if uncompared is None else uncompared.offset

    def mark_out_of_range(self, partition: int) -> None:
        """Stop reading a partition, since a broker has answered that its log does not have the position.

        The broker may be a replica that lags behind for a moment. So the last record before the position, if it is
        known, must be compared again: only another record shows that the log was cut.
        """
        last = self._last_records.get(partition)
        # When a client reports this a second time, the partition is not in `by_partition` any more.
        if partition in self.by_partition and last is not None:
            self.uncompared_records[partition] = last
        self._stop_out_of_range(partition)

    def mark_cut(self, partition: int) -> None:
        """Stop reading a partition, since its log was cut before the position, and note the position in `out_of_range`.

        A second call does nothing. If `uncompared_records` holds the last record before the position, the record stays
        there, to be compared after the next seek.
        """
        self._stop_out_of_range(partition)

    def _stop_out_of_range(self, partition: int) -> None:
        """Move the position of a partition, unless this has happened already, to those that are out of range."""
        if partition in self.by_partition:
            self.out_of_range[partition] = self.by_partition.pop(partition).next

    def take_records(self, partition: int, records: Sequence[Record], fetched: Reached) -> Records | None:
        """Move a partition's position past the records that a client has returned, and return the event for them.

        `fetched` is how far the client has fetched. Return None if there are no new records, and neither the next
        offset nor the end has moved. After a start, the client fetches the last record before the position once more,
        and it is compared with the log, which may have been cut. Until then, return None, too.
        """
        before = self.by_partition[partition]
        if partition in self.uncompared_records:
            may_read_on = self._compare_last_record(partition, records, fetched)
            if not may_read_on:
                return None
            # The records from the position on are new. The record before them was fetched only for the comparison.
            first_new = bisect.bisect_left(records, before.next, key=lambda record: record.offset)
            records = records[first_new:]
        after_records = records[-1].offset + 1 if records else UNKNOWN
        # The offsets in `Reached` may be UNKNOWN or EARLIEST. Both are negative, so below every known offset.
        next_offset = max(before.next, fetched.next, after_records)
        # When a fetch fails, librdkafka forgets the end, but it still returns records.
        end = fetched.end if fetched.end >= 0 else before.end
        is_end_known = end >= 0 or bool(records)  # records show that the end is not before `next_offset`
        if next_offset < 0 or not is_end_known:  # the client has got no answer yet
            return None
        after = Reached(next=next_offset, end=max(end, next_offset))
        if after == before:
            return None
        self.by_partition[partition] = after
        if records:
            self._set_last_record(partition, last_of(records))
        return Records(partition=partition, records=records, next=after.next, end=after.end)

    def _set_last_record(self, partition: int, last: LastRecord | None) -> None:
        """Note the last record before the position.

        None: the record is unknown, or it has no leader epoch, by which another record at its offset is recognised.
        """
        if last is None:
            self._last_records.pop(partition, None)
        else:
            self._last_records[partition] = last

    def _compare_last_record(self, partition: int, records: Sequence[Record], fetched: Reached) -> bool:
        """Compare the last record that was read with the log, from which the client fetches it again.

        Return whether the partition may be read on. If not, its position is out of range, or the client has not fetched
        the record yet, and a later call compares.
        """
        position = self.by_partition[partition].next
        last = self.uncompared_records[partition]  # the last record before the position
        # The log holds another record at the same offset: it was cut and has grown again.
        is_offset_fetched = bool(records) and records[0].offset == last.offset
        is_another_record = is_offset_fetched and records[0].leader_epoch != last.leader_epoch
        if is_another_record:
            self.mark_cut(partition)
            del self.uncompared_records[partition]
            return False
        # The log ends before the position. The record stays uncompared, since a later fetch may find it.
        is_end_known = fetched.end >= 0
        has_fetched_to_end = is_end_known and fetched.next >= fetched.end
        log_ends_before_position = has_fetched_to_end and fetched.next < position
        if log_ends_before_position:
            self.mark_out_of_range(partition)
            return False
        # The log holds the same record, or compaction has removed it: then the first record has a later offset.
        has_fetched_past_last = bool(records) or fetched.next > last.offset
        if has_fetched_past_last:
            del self.uncompared_records[partition]
        return has_fetched_past_last
