"""How far a partition is transformed, as its committed offset says, from which the next member resumes."""

from typing import NamedTuple

from streampca.consumer_group.committed import OutputShape, last_in, metadata_of_outputs, topic_id_in
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
    last = last_in(committed.metadata)
    # A tool may have set an earlier offset and kept the metadata.
    return Position(committed.offset, last if last and last.offset < committed.offset else None)


def refuse_offset_of_other_topic(topic: str, partition: int, committed: Committed, topic_id: str) -> None:
    """Raise `TopicReplacedError` if the offset was committed for another topic of the same name."""
    theirs = topic_id_in(committed.metadata)
    if theirs is not None:
        refuse_other_topic(
            topic,
            theirs,
            topic_id,
            f"in the committed offset of partition {partition}",
            "write to another output_topic with another transform_group_id",
        )
