"""How far a partition is transformed, as its committed offset says, from which the next member resumes."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from streampca.consumer_group.committed import OutputShape, metadata_of_outputs, read_last_record, read_topic_id
from streampca.errors import refuse_other_topic
from streampca.formats.record import LastRecord
from streampca.sources.base import Committed


class Position(NamedTuple):
    """Where a partition is read."""

    position: int  # the next offset; -1: the earliest
    last: LastRecord | None = None  # before the position; None: its leader epoch is unknown

    @property
    def is_first_start(self) -> bool:
        return self.position < 0

    def skip(self, position: int, lost_from: int) -> "Position":
        return Position(position)

    def as_committed(self, shape: OutputShape, topic_id: str) -> Committed:
        """The offset to commit, and its metadata."""
        return Committed(self.position, metadata_of_outputs(shape, topic_id, self.last))


def position_in(committed: Committed) -> Position:
    """Where to resume."""
    last = read_last_record(committed.metadata)
    # A tool may have set an earlier offset and kept the metadata.
    return Position(committed.offset, last if last and last.offset < committed.offset else None)


def refuse_other_outputs(
    topic: str, topic_id: str, committed: Mapping[int, Committed], require_shape: Callable[[str], object]
) -> None:
    """Raise if outputs of the group, as its offsets by partition say, must not be followed by a member's.

    Raises `TopicReplacedError` if they are of another topic of the same name, and what `require_shape` raises for the
    metadata of outputs of another shape.
    """
    for partition, offset in committed.items():
        require_shape(offset.metadata)
        before = read_topic_id(offset.metadata)
        where = f"in the committed offset of partition {partition}"
        remedy = "write to another output_topic with another transform_group_id"
        refuse_other_topic(topic, before, topic_id, where, remedy)
