"""What a member does with bad records and with lost records.

It stops at the first bad record, skips bad records, or sends them to the dead-letter topic.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from streampca.consumer_group.events import ElementsReordered, RecordRejected, RecordsSkipped
from streampca.errors import BadRecordError, OffsetGapError, RejectLimitError
from streampca.formats.errors import CONDITION_UNMET
from streampca.formats.record import Reject
from streampca.sources.events import OutOfRange, Vectors

# If this many records have no vector, and no record before had one, a setting is perhaps wrong.
RECORDS_TO_JUDGE_SETTINGS = 100
_ALL_UNMET = "none meets the conditions of `where`: correct where if some should"
_ALL_DELETES = "all are tombstones or null at `field`: correct field if they should have vectors"


@dataclass(frozen=True)
class MemberPolicy:
    """Decides what a member does with bad records, and where it resumes if the log has lost the next one."""

    topic: str
    on_bad_record: str = "stop"  # stop, skip, or dead_letter
    on_offset_gap: str = "fail"  # fail, earliest or latest
    suspect_settings: ClassVar[str]  # for errors: these may be wrong if the first records are all rejected
    settings_to_start_over: ClassVar[str]  # for errors: with other values of these, all records are read again

    def find_stopping_reject(self, batch: Vectors) -> Reject | None:
        """Return the rejected record at which the member must stop, or None if it may continue."""
        rejects = batch.decoded.rejects
        return rejects[0] if rejects and self.on_bad_record == "stop" else None

    def make_stop_error(self, batch: Vectors, reject: Reject) -> BadRecordError:
        """Return the error of a member that stops at a rejected record."""
        offset = batch.records[reject.index].offset
        return BadRecordError(
            f"partition {batch.partition} of {self.topic}, offset {offset}: "
            f"{reject.message} ({reject.reason}); set dead_letter_topic to send such records there, or "
            "on_bad_record=skip; if all records are like this, correct format, field or dimensions"
        )

    def find_dead_letters(self, batch: Vectors, *, accepted_before: bool) -> Sequence[Reject]:
        """Return the rejected records to send to the dead-letter topic.

        `accepted_before` says whether a vector was accepted before this batch. If none was, and the batch has 100
        rejects before its first vector, raises `RejectLimitError`.
        """
        if self.on_bad_record != "dead_letter":
            return []
        rejects = batch.decoded.rejects
        if accepted_before or len(rejects) < RECORDS_TO_JUDGE_SETTINGS:
            return rejects
        first_rejects = rejects[:RECORDS_TO_JUDGE_SETTINGS]
        last_index = first_rejects[-1].index  # in the batch
        vector_indices = batch.decoded.indices  # of the records that hold vectors
        has_vectors_before_last = (vector_indices < last_index).any()
        if not has_vectors_before_last:  # the batch begins with rejects, and perhaps skipped records
            raise self._make_wrong_settings_error(batch, first_rejects)
        return rejects

    def _make_wrong_settings_error(self, batch: Vectors, rejects: Sequence[Reject]) -> RejectLimitError:
        """Return the error for a batch that begins with these rejects."""
        reason, count = Counter(reject.reason for reject in rejects).most_common(1)[0]
        how_many = "all" if count == len(rejects) else f"{count} of them"
        example = next(reject for reject in rejects if reject.reason == reason)
        first_offset = batch.records[0].offset
        example_offset = batch.records[example.index].offset
        return RejectLimitError(
            f"partition {batch.partition} of {self.topic}: {len(rejects)} records in a row were rejected, from offset "
            f"{first_offset} on; {how_many} as {reason}, such as offset {example_offset}: "
            f"{example.message}; correct the settings ({self.suspect_settings}) or the producer and start again, "
            "which reads all of them again; or leave such records out: on_bad_record=skip, without a dead_letter_topic"
        )

    def choose_resume_offset(self, event: OutOfRange) -> int:
        """Return the offset to resume at when the log does not hold the next record. There are three cases:

        - Replaced: the log was truncated and has grown again. At `event.diverged`, the log holds another record now.
        - Beyond the end: the log was truncated, and ended before the position. Raises `OffsetGapError`.
        - Removed: retention has removed the records from the position up to `event.earliest`.

        If records were replaced or removed, `on_offset_gap` decides: "fail" raises `OffsetGapError`.
        """
        was_replaced = event.diverged is not None
        was_removed = event.position < event.earliest
        # The case "beyond the end" is what is left. `event.latest` does not show it: the log may have grown since.
        was_beyond_end = not was_replaced and not was_removed
        if was_beyond_end or self.on_offset_gap == "fail":
            raise OffsetGapError(self._describe_lost_records(event))
        if self.on_offset_gap == "latest":
            return event.latest
        if was_replaced:
            # The new records before the position are left out: no offset may count twice.
            return event.position
        return event.earliest

    def _describe_lost_records(self, event: OutOfRange) -> str:
        """Say why the log does not hold the next record, and what to do. See the cases of `choose_resume_offset`."""
        where = f"partition {event.partition} of {self.topic}: offset {event.position}"
        if event.diverged is not None:  # replaced: the log was truncated below the position, and has grown again
            return (
                f"{where} follows records that are not in the log any more: the log was cut at offset "
                f"{event.diverged} or before and has grown again, so records that were read are gone and others were "
                f"not read; start over with {self.settings_to_start_over}, or set on_offset_gap to earliest or latest "
                "to continue"
            )
        if event.position >= event.earliest:  # beyond the end
            return (
                f"{where} is beyond the end of the log (it holds {event.earliest} to {event.latest}): records that "
                f"were read are gone from the broker (it lost data); start over with {self.settings_to_start_over}"
            )
        return (  # removed
            f"{where} was removed by retention, the log starts at {event.earliest}; set on_offset_gap to earliest "
            "or latest to resume without the records between"
        )


def report_rejected_and_skipped(
    batch: Vectors, *, accepted_any: bool
) -> Iterator[RecordRejected | RecordsSkipped | ElementsReordered]:
    """Yield the events that report what was wrong with records of a batch: rejected, skipped, elements reordered.

    `accepted_any` says whether the member has accepted a vector, in this batch or before. If not, the log warns that
    many skipped records may mean a wrong setting.
    """
    for reject in batch.decoded.rejects:
        yield RecordRejected(batch.partition, batch.records[reject.index].offset, reject.reason, reject.message)
    counts = Counter(skipped.reason for skipped in batch.decoded.skipped)
    for reason, count in counts.items():
        yield RecordsSkipped(count, accepted_any=accepted_any, reason=reason)
    if batch.decoded.warning:  # elements of an array are at other places than in earlier records
        yield ElementsReordered(batch.decoded.warning)


def explain_all_skipped(reason: str) -> str:
    """Say which setting may be wrong if all records are skipped; `reason` is that of the last one."""
    return _ALL_UNMET if reason == CONDITION_UNMET else _ALL_DELETES
