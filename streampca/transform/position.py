"""How far a partition is transformed, and the metadata of its committed offset, from which the next member resumes.

`k=2 d=784 version=4000 topic=5fJx41ZNQ6u3sVYq2mTq0g last=41@3`: the shape of the outputs, the version of the model if
`model_version` fixes it, the id of the topic, and the offset and the leader epoch of the last record. Tools that set
offsets write nothing.
"""

import re
from typing import NamedTuple

from streampca.errors import refuse_other_topic
from streampca.formats.record import LastRecord
from streampca.sources.base import Committed

_TOPIC = re.compile(r"\btopic=([\w-]+)")
_LAST = re.compile(r"\blast=([0-9]+)@([0-9]+)")


class Position(NamedTuple):
    """Where a partition is read."""

    position: int  # the next offset; -1: the earliest
    last: LastRecord | None = None  # before the position; None: its leader epoch is unknown

    @property
    def is_first_start(self) -> bool:
        return self.position < 0

    def skip(self, position: int, lost_from: int) -> "Position":
        return Position(position)

    def as_committed(self, shape: str, topic_id: str) -> Committed:
        """The offset to commit, and its metadata."""
        topic = f" topic={topic_id}" if topic_id else ""
        last = f" last={self.last.offset}@{self.last.leader_epoch}" if self.last else ""
        return Committed(self.position, f"{shape}{topic}{last}")


def position_in(committed: Committed) -> Position:
    """Where to resume."""
    match = _LAST.search(committed.metadata)
    last = LastRecord(int(match[1]), int(match[2])) if match else None
    # A tool may have set an earlier offset and kept the metadata.
    return Position(committed.offset, last if last and last.offset < committed.offset else None)


def refuse_offset_of_other_topic(topic: str, partition: int, committed: Committed, topic_id: str) -> None:
    """Raise `TopicReplacedError` if the offset was committed for another topic of the same name."""
    if match := _TOPIC.search(committed.metadata):
        refuse_other_topic(
            topic,
            match[1],
            topic_id,
            f"in the committed offset of partition {partition}",
            "write to another output_topic with another transform_group_id",
        )
