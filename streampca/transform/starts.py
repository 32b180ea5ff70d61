"""Where a member of transform reads each partition from: at the offset that its group has committed, if there is one.

The group has committed no offset for a partition that nobody has read yet. But brokers also delete the offsets of a
group that has had no members for a week; if transform then began at the earliest record, it would write all outputs
again. Each output names its record, so the last committed output tells how far the group has come.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from streampca.consumer_group.committed import read_shape
from streampca.errors import NoBrokerError, SettingsError, SourceError, explain_missing_extra, list_names
from streampca.formats.record import Record
from streampca.sources.base import Committed, Source
from streampca.sources.topic_reader import TopicReader
from streampca.transform.position import Position, read_position, refuse_other_outputs
from streampca.transform.record_packer import Origin, read_origin

OUTPUTS = "outputs"  # a value of the setting transform_start: behind the record of the last output
_EARLIEST = Position(-1)
_ARROW_BEGINNING = b"\xff\xff\xff\xff"  # of the value of an Arrow message


class Starts(NamedTuple):
    """Where partitions are read from."""

    topic_id: str  # "" if the brokers give topics no ids
    committed: Mapping[int, Committed]  # by partition, the offsets of the group, also of other partitions
    uncommitted: Mapping[int, Position]  # by partition, where partitions without a committed offset begin

    def by_partition(self, partitions: Collection[int]) -> dict[int, Position]:
        """Return where each partition is read from: its position in `uncommitted`, or the committed one."""
        positions = {}
        for partition in partitions:
            if partition in self.uncommitted:
                positions[partition] = self.uncommitted[partition]
            else:
                positions[partition] = read_position(self.committed[partition])
        return positions


@dataclass(frozen=True)
class StartFinder:
    """Finds where partitions are read from, at each assignment and when a member starts."""

    source: Source
    topic: str
    output_topic: str
    open_outputs: Callable[[], TopicReader]  # opens a reader of the output topic
    check_metadata: Callable[[str], object]  # see `refuse_other_outputs`
    transform_start: str | int | None = None  # the setting: a word, or a time in milliseconds since 1970; None: unset

    def find(self, partitions: Collection[int]) -> Starts:
        """Find where these partitions are read from: a committed offset, or what `transform_start` says.

        Raises `TimeoutError` if a retry can help, `TopicReplacedError`, `InputError`, or `SettingsError`.
        """
        committed = self.source.committed()
        topic_id = self.source.topic_id()
        without_offset = set(partitions) - committed.keys()
        behind_outputs: Mapping[int, Position | None] = {}  # by partition; stays empty if no start depends on it
        starts_depend_on_outputs = self.transform_start in (None, OUTPUTS)  # None: not set
        if without_offset and starts_depend_on_outputs:
            behind_outputs = self._find_positions_behind_outputs(without_offset, topic_id)
            # While the outputs were read, another member may have committed offsets, or brokers may have deleted some.
            committed = self.source.committed()
            without_offset_now = set(partitions) - committed.keys()
            have_lost_offset = without_offset_now - without_offset  # the outputs of these partitions were not read
            if have_lost_offset:
                raise TimeoutError("offsets of the group were deleted while the outputs were read")
            without_offset = without_offset_now
        # All outputs must have the same shape, which is the numbers of components and dimensions.
        refuse_other_outputs(self.topic, topic_id, committed, self.check_metadata)
        # For this reason, one member begins first, and its outputs decide the shape.
        self._refuse_to_begin_before_owner_of_lowest_partition(partitions, committed)
        uncommitted = self._choose_starts(without_offset, behind_outputs)
        return Starts(topic_id=topic_id, committed=committed, uncommitted=uncommitted)

    def _refuse_to_begin_before_owner_of_lowest_partition(
        self, partitions: Collection[int], committed: Mapping[int, Committed]
    ) -> None:
        """If the group has no outputs yet, only the member that owns the lowest partition may begin.

        Any other member raises `TimeoutError`, and tries again later. The first outputs decide how many components and
        dimensions all outputs have. If all members began at the same time with models of different shapes, they would
        mix outputs of these shapes.
        """
        lowest = min(self.source.partitions(), default=0)
        owns_lowest = lowest in partitions
        is_shape_committed = any(read_shape(offset.metadata) is not None for offset in committed.values())
        if not owns_lowest and not is_shape_committed:
            raise TimeoutError(
                f"the group has committed no offset of {self.topic} that tells the shape of its outputs: the member "
                f"that reads partition {lowest} commits the first one"
            )

    def _choose_starts(
        self, partitions: Collection[int], behind_outputs: Mapping[int, Position | None]
    ) -> dict[int, Position]:
        """Return where partitions without a committed offset begin.

        This depends on the setting `transform_start`:

        - outputs, or not set: the last output of a partition decides. `behind_outputs` has the position behind the
          record that this output was made from (`_find_positions_behind_outputs`).
        - earliest: at the earliest record
        - latest: at the end of the log
        - a time: at the first record of this time, or a later time
        """
        if self.transform_start in (None, OUTPUTS):  # None: not set
            return {p: self._choose_start_by_outputs(p, behind_outputs[p]) for p in sorted(partitions)}
        if self.transform_start == "earliest":
            return dict.fromkeys(partitions, _EARLIEST)
        if self.transform_start == "latest":
            offsets = self.source.offsets_at(partitions, time_ms=None)
        else:
            offsets = self.source.offsets_at(partitions, time_ms=int(self.transform_start))
        return {partition: Position(offset) for partition, offset in offsets.items()}

    def _choose_start_by_outputs(self, partition: int, behind_outputs: Position | None) -> Position:
        """Return where a partition begins if `transform_start` is outputs or not set.

        Without outputs, it begins at the earliest record. With outputs, it begins behind the last one if
        `transform_start` is outputs. Otherwise, outputs could be written twice, so raises `SettingsError`.
        """
        if behind_outputs == _EARLIEST:  # the partition has no output
            return _EARLIEST
        if behind_outputs is not None and self.transform_start == OUTPUTS:
            return behind_outputs
        if behind_outputs is None:  # it is unknown whether there are outputs
            evidence = "does not tell what was written: it has lost its first records, or ends with many aborted ones"
            choices = "earliest, latest or a time"
        else:
            evidence = f"holds the output of its record at offset {behind_outputs.position - 1}"
            choices = "outputs (behind this record), earliest, latest or a time"
        raise SettingsError(
            f"the group has no committed offset of partition {partition} of {self.topic} (brokers delete the offsets "
            f"of a group that has no members for a week), but partition {partition} of {self.output_topic} {evidence}; "
            f"so that no output is written twice, set transform_start to {choices}"
        )

    def _find_positions_behind_outputs(
        self, partitions: Collection[int], topic_id: str
    ) -> Mapping[int, Position | None]:
        """Find in the output topic, for each partition, the position behind the last record that has an output.

        For a partition without outputs, this is the position of its earliest record. If it is unknown whether a
        partition has outputs, the result has None for this partition.
        """
        behind_outputs = {}
        try:
            with closing(self.open_outputs()) as reader:
                output_partition_count = len(reader.log_bounds)
                require_output_partitions(self.output_topic, output_partition_count, self.topic, partitions)
                newest_outputs = reader.find_last(partitions, is_wanted=_is_output)
                for partition in partitions:
                    outputs = newest_outputs.get(partition)  # None: the search gave up before it found an output
                    earliest_offset, _end = reader.log_bounds[partition]
                    behind_outputs[partition] = _find_position_behind(outputs, earliest_offset, topic_id)
        except NoBrokerError as error:  # callers try again after a `TimeoutError`
            raise TimeoutError(str(error)) from None
        except SourceError as error:
            raise SourceError(
                f"the last outputs cannot be found, which needs the right to read {self.output_topic}: {error}"
            ) from None
        return behind_outputs


def require_output_partitions(output_topic: str, count: int, topic: str, partitions: Collection[int]) -> None:
    """Raise `TimeoutError`, so that the member tries again, if the output topic lacks one of these partitions."""
    lacking = [str(partition) for partition in sorted(partitions) if partition >= count]
    if lacking:
        raise TimeoutError(
            f"{output_topic} has {count} partitions, so partitions {list_names(lacking)} of {topic} wait: "
            f"add partitions to {output_topic}, since each partition is written to the one of the same number"
        )


def _is_output(record: Record) -> bool:
    return read_origin(record.headers) is not None


def _find_position_behind(outputs: Sequence[Record] | None, earliest_offset: int, topic_id: str) -> Position | None:
    """Find the position behind the last source record from which an output partition has an output.

    `outputs` are the newest outputs in this partition, whose log begins at `earliest_offset`. None means that a search
    gave up before it found an output. Outputs that were made from a deleted topic of the same name do not count.

    If no output counts, returns the position of the earliest record. If older outputs may be lost, returns None.
    """
    if outputs is None:
        return None
    for output in reversed(outputs):
        origin = read_origin(output.headers)
        if origin is not None and not _is_of_other_topic(origin, topic_id):
            # An Arrow output has a row for each vector of several records: its header names only the first record.
            offset_of_last_row = _read_offset_of_last_row(output)
            last_offset = origin.offset if offset_of_last_row is None else offset_of_last_row
            return Position(last_offset + 1)
    # No output counts. Outputs that are older than these do not count either: they were made from the same topic as
    # these, or from a topic that was deleted even earlier.
    is_log_complete = earliest_offset == 0  # a log that begins later has lost its first outputs
    return _EARLIEST if is_log_complete else None


def _is_of_other_topic(origin: Origin, topic_id: str) -> bool:
    """Return whether an output was made from a topic with another id, if both ids are known."""
    are_known = "" not in (origin.topic_id, topic_id)
    return are_known and origin.topic_id != topic_id


def _read_offset_of_last_row(output: Record) -> int | None:
    """Return the offset in the last row of an Arrow message; None for any other output."""
    value = output.value or b""
    if not value.startswith(_ARROW_BEGINNING):
        return None
    with explain_missing_extra("arrow", needed_by="reading the last output, an Arrow message,"):
        from streampca.transform.arrow import read_last_offset
    return read_last_offset(value)
