"""The metadata of committed offsets say where the next member resumes, and after which record."""

import pytest
from hypothesis import given, strategies as st

from streampca.consumer_group.committed import OutputShape, read_shape
from streampca.errors import TopicReplacedError
from streampca.formats.record import LastRecord
from streampca.sources.base import Committed
from streampca.transform.position import Position, read_position, refuse_other_outputs
from tests.errors import refusal

OFFSETS = st.integers(0, 2**63 - 2)
IDS = st.one_of(st.just(""), st.text("abcXYZ019-_", min_size=22, max_size=22))


def refuse(committed: Committed, topic_id: str) -> None:
    """Only the topic matters here."""
    refuse_other_outputs("readings", topic_id, {0: committed}, lambda metadata: None)


@given(st.data(), IDS, st.integers(0, 2**31 - 1))
def test_what_is_committed_can_be_read_back(data: st.DataObject, topic_id: str, epoch: int) -> None:
    last = LastRecord(data.draw(OFFSETS), epoch)
    shape = OutputShape(2, 784, data.draw(st.none() | OFFSETS))
    behind = data.draw(st.integers(last.offset + 1, 2**63 - 1))
    for position in (Position(behind, last), Position(behind)):
        committed = position.as_committed(shape, topic_id)
        assert read_position(committed) == position
        assert read_shape(committed.metadata) == shape
        assert len(committed.metadata) < 200
        refuse(committed, topic_id)


def test_people_can_read_the_metadata_of_a_position() -> None:
    position, text = Position(42, LastRecord(41, 3)), "k=2 d=5 topic=5fJx-41Z last=41@3"
    assert position.as_committed(OutputShape(2, 5), "5fJx-41Z") == (42, text)
    assert read_position(Committed(42, text)) == position


@pytest.mark.parametrize("metadata", ["", "k=2 d=5", "by another tool", "last=x@y topic= ", "k=2 d=5 last=42@3"])
def test_offsets_of_other_tools_are_positions(metadata: str) -> None:
    """Also where the last record would be behind the offset."""
    assert read_position(Committed(42, metadata)) == Position(42)
    refuse(Committed(42, metadata), "id")


def test_offsets_of_another_topic_of_that_name_are_refused() -> None:
    committed = Position(42).as_committed(OutputShape(2, 5), "former")
    text = refusal(TopicReplacedError, refuse, committed, "new")
    assert "(its id is new, but was former in the committed offset of partition 0)" in text
    assert -1 < text.find("bootstrap_servers") < text.find("`streampca reset --adopt-topic`")
    refuse(committed, "")  # brokers before 2.8 know none


@pytest.mark.parametrize(("offset", "has_handled_none"), [(-1, True), (0, True), (1, False)])
def test_a_partition_without_a_transformed_record_has_handled_none(offset: int, has_handled_none: bool) -> None:
    """Also if the group has committed offset 0, as after a poll without records."""
    assert Position(offset).has_handled_none is has_handled_none
