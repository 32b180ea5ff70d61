"""The position of a partition that is transformed: it is committed, and the next member resumes from it."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from streampca.consumer_group.committed import OutputShape, format_output_metadata, read_last_record, read_topic_id
from streampca.errors import refuse_other_topic
from streampca.formats.record import LastRecord
from streampca.sources.base import Committed


class Position(NamedTuple):
    """Where a partition is read."""

    position: int  # the next offset; -1: the earliest record's
    last: LastRecord | None = None  # the last record before the position; None: its leader epoch is not known

    @property
    def has_handled_none(self) -> bool:
        """Whether no record was transformed yet: offset 0 may be committed after a poll without records."""
        return self.position <= 0

    def skip(self, position: int, lost_from: int) -> "Position":
        """Return the position behind lost records. The last record before it is not known."""
        return Position(position)

    def as_committed(self, shape: OutputShape, topic_id: str) -> Committed:
        """Return the offset to commit, and its metadata."""
        return Committed(self.position, format_output_metadata(shape, topic_id, self.last))


def read_position(committed: Committed) -> Position:
    """Return the position at which a member resumes from a committed offset.

    If a member of transform has committed the offset, the metadata say which record was the last before it.
    """
    last = read_last_record(committed.metadata)
    if last is not None and last.offset >= committed.offset:
        last = None  # another tool has committed an earlier offset with old metadata
    return Position(committed.offset, last)


def refuse_other_outputs(
    input_topic: str, topic_id: str, committed: Mapping[int, Committed], check_metadata: Callable[[str], object]
) -> None:
    """Raise if the metadata of the group's committed offsets show another input topic, or outputs of another kind.

    `check_metadata(metadata)` raises `InputError` if the outputs do not fit the present model. `TopicReplacedError` is
    raised if the group has read a deleted topic of this name, whose id was not `topic_id`.
    """
    remedy = "write to another output_topic with another transform_group_id"
    for partition, (_offset, metadata) in committed.items():
        check_metadata(metadata)
        where = f"in the committed offset of partition {partition}"
        refuse_other_topic(input_topic, before=read_topic_id(metadata), now=topic_id, where=where, remedy=remedy)
