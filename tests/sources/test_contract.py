"""The contract of sources and dead letters (streampca/sources/base.py), on all implementations."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from streampca.formats.record import LastRecord, Record, last_of
from streampca.sources.base import Committed
from streampca.sources.events import Assigned, Lost, OutOfRange, Records, Revoked, SourceStatus
from tests.sources.backends import Backend, InMemory, OnConfluent, OnKafka
from tests.sources.reader import Reader, join_group, poll_all_until, start_reading, values
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("long_timeouts")

Make = Callable[..., Backend]


ON_BROKER = [pytest.param(kind, marks=pytest.mark.broker) for kind in (OnKafka, OnConfluent)]


@pytest.fixture(params=[InMemory, *ON_BROKER])
def make(request: pytest.FixtureRequest, topic: str) -> Iterator[Make]:
    """Creates the backend of the test with a number of partitions, and of records in each."""
    broker = () if issubclass(request.param, InMemory) else (request.getfixturevalue("broker"),)
    with ExitStack() as opened:

        def make(partitions: int, records: int = 0) -> Backend:
            log: Backend = opened.enter_context(closing(request.param(*broker, topic, partitions)))
            for partition in range(partitions if records else 0):
                log.append(partition, values(0, records))
            return log

        yield make


def test_records_arrive_in_order_and_next_is_the_following_position(make: Make) -> None:
    log = make(2, 50)
    log.append(0, values(50, 100))
    reader = Reader(log.open(poll_records=7))
    assert reader.wait_for_assignment() == {0, 1}
    reader.source.seek({0: None, 1: None})
    reader.read_to({0: 100, 1: 50})
    assert reader.offsets(0) == list(range(100))
    assert reader.values(1) == values(0, 50)
    for event in reader.events_of_type(Records):
        assert len(event.records) <= 7
        assert event.end == {0: 100, 1: 50}[event.partition]
        if event.records:
            assert event.next == event.records[-1].offset + 1
    log.append(1, [*values(50, 59), None])
    reader.read_to({1: 60})
    assert reader.values(1) == [*values(0, 59), None]
    reader.read_from({1: 60})
    reader.read_to({1: 60})
    assert [(list(e.records), e.next, e.end) for e in reader.events_of_type(Records) if e.partition == 1][-1] == (
        [],
        60,
        60,
    )


def test_a_partition_without_records_has_an_event_with_its_next_offset(make: Make) -> None:
    """A member of transform commits this offset, for which the other members of a new group wait."""
    reader = start_reading(make(2).open(), {0: None, 1: None})
    reader.read_to({0: 0, 1: 0})
    assert {(len(event.records), event.next, event.end) for event in reader.events_of_type(Records)} == {(0, 0, 0)}


def test_the_status_of_a_member_without_partitions_says_whether_it_is_a_member(make: Make) -> None:
    log = make(1)
    readers = [Reader(log.open()), Reader(log.open())]

    def settled() -> bool:
        for reader in readers:
            reader.poll(0.05)
        members = all(r.source.status() == SourceStatus(True, True) for r in readers)
        return members and sorted(len(r.owned) for r in readers) == [0, 1]

    wait_until(settled, what="a group of two, one of them without a partition")
    other, holder = sorted(readers, key=lambda reader: len(reader.owned))
    holder.source.close()
    log.opened.remove(holder.source)
    other.wait_for_assignment()
    other.poll_until(lambda: other.source.status() == SourceStatus(connected=True, member=True))
    log.evict_all()
    other.poll_until(lambda: not other.source.status().member or other.events_of_type(Lost))
    other.poll_until(lambda: other.source.status().member)


def test_the_offset_at_a_time_is_of_the_first_later_record_or_the_end(make: Make) -> None:
    log = make(2)
    for i in range(5):
        log.append(0, values(i, i + 1), 1_700_000_000_000 + 1000 * i)
    source = log.open()
    Reader(source).wait_for_assignment()
    assert source.offsets_at({0, 1}, 1_700_000_000_000) == {0: 0, 1: 0}
    assert source.offsets_at({0, 1}, 1_700_000_002_500) == {0: 3, 1: 0}
    assert source.offsets_at({0, 1}, 1_800_000_000_000) == {0: 5, 1: 0}
    assert source.offsets_at({0, 1}, None) == {0: 5, 1: 0}


def test_no_record_arrives_before_seek_even_with_committed_offsets(make: Make) -> None:
    log = make(1, 10)
    first = join_group(log.open())
    first.source.commit({0: 3})
    first.source.close()
    second = join_group(log.open())
    second.poll_times(15)
    assert second.events_of_type(Records) == []
    second.source.seek({0: 5})
    second.read_to({0: 10})
    assert second.offsets(0) == list(range(5, 10))


def test_records_fetched_before_a_seek_do_not_arrive_after_it(make: Make) -> None:
    reader = join_group(make(1, 1000).open(poll_records=10))
    for position in (None, 700, 5, 6, 6, 999, 0):
        reader.read_from({0: position})
        reader.poll_until(lambda: len(reader.records(0)) >= 10 or reader.next_position(0) == 1000)
        start = position or 0
        assert reader.offsets(0) == list(range(start, min(start + len(reader.records(0)), 1000)))


def test_a_paused_partition_returns_nothing_until_seek(make: Make) -> None:
    log = make(2, 100)
    reader = start_reading(log.open(poll_records=10), {0: 0, 1: 0})
    reader.poll_until(lambda: reader.records(0) and reader.records(1))
    reader.source.pause(frozenset({0}))
    before = len(reader.records(0))
    log.append(0, values(100, 110))
    reader.read_to({1: 100})
    reader.poll_times(5)
    assert len(reader.records(0)) == before
    reader.source.seek({0: before})
    reader.read_to({0: 110})
    assert reader.offsets(0) == list(range(110))


def test_partitions_paused_in_turn_are_read_to_the_end_after_seek(make: Make) -> None:
    """Some of the fetched records are returned, others are still buffered in the client."""
    reader = start_reading(make(4, 100).open(poll_records=10), dict.fromkeys(range(4), 0))
    paused: dict[int, int | None] = {}

    def all_paused() -> bool:
        for event in reader.poll():
            if isinstance(event, Records) and event.records:
                reader.source.pause(frozenset({event.partition}))
                paused[event.partition] = event.next
        return len(paused) == 4

    wait_until(all_paused, what="records of all")
    reader.poll()
    reader.source.seek(paused)
    reader.read_to(dict.fromkeys(range(4), 100))
    assert [reader.offsets(partition) for partition in range(4)] == [list(range(100))] * 4


def test_offsets_without_a_record_are_skipped(make: Make) -> None:
    log = make(1, 3)
    log.append_aborted(0, values(3, 8))  # offsets 3 to 7, and the marker at 8
    reader = start_reading(log.open(), {0: None})
    reader.read_to({0: 9})
    reader.read_from({0: 9}, {0: last_record(reader, 2)})
    log.append(0, values(9, 12))
    log.append_aborted(0, values(12, 13))
    reader.read_to({0: 14})
    assert reader.offsets(0) == [9, 10, 11]
    assert all(event.next >= 9 for event in reader.events_of_type(Records))
    reader.read_from({0: None})
    reader.read_to({0: 14})
    assert reader.offsets(0) == [0, 1, 2, 9, 10, 11]
    assert [(event.next, event.end) for event in reader.events_of_type(Records)][-1] == (14, 14)


@pytest.mark.parametrize("position", [2, 500])
def test_a_position_outside_the_log_is_an_event(make: Make, position: int) -> None:
    log = make(2, 10)
    log.trim(0, 5)
    reader = start_reading(log.open(), {0: position, 1: 0})
    reader.poll_until(lambda: reader.events_of_type(OutOfRange) and reader.next_position(1) == 10)
    reader.poll_times(5)
    assert reader.events_of_type(OutOfRange) == [OutOfRange(0, position, earliest=5, latest=10)]
    assert reader.records(0) == []
    reader.source.seek({0: 5})
    reader.read_to({0: 10})
    assert reader.offsets(0) == [5, 6, 7, 8, 9]


def last_record(reader: Reader, offset: int) -> LastRecord:
    """The record at an offset, as it was read."""
    return last_of([record for record in reader.records(0) if record.offset == offset])


def test_the_position_in_a_log_that_was_cut_is_out_of_range(make: Make) -> None:
    """One has grown again; of two, either many or only the last record is missing; one is whole."""
    log, (grown, far, near, whole) = make(4), range(4)
    sizes = {}
    for partition, left in ((grown, 20), (far, 20), (near, 39)):
        log.append(partition, values(0, left))
        sizes[partition] = log.log_size(partition)
        log.append(partition, values(left, 40))
    log.append(whole, values(0, 3))
    reader = start_reading(log.open(), dict.fromkeys(range(4), None))
    reader.read_to({grown: 40, far: 40, near: 40, whole: 3})
    reader.source.close()
    log.opened.clear()
    log.truncate(sizes)
    log.append(grown, values(100, 160))
    last = last_record(reader, 39)
    other = start_reading(log.open(), {grown: 40, far: 40, near: 40, whole: 2}, dict.fromkeys((grown, far, near), last))
    other.poll_until(lambda: len(other.events_of_type(OutOfRange)) == 3 and other.next_position(whole) == 3)
    other.poll_times(5)
    events = {event.partition: event for event in other.events_of_type(OutOfRange)}
    assert len(other.events_of_type(OutOfRange)) == len(events) == 3
    assert events[grown] == OutOfRange(grown, 40, 0, 80, events[grown].diverged)
    assert events[grown].diverged in (20, 39)  # not every client knows more than that the last record is another one
    for partition, left in ((far, 20), (near, 39)):
        assert (events[partition].position, events[partition].earliest, events[partition].latest) == (40, 0, left)
    assert [other.records(partition) for partition in (grown, far, near)] == [[], [], []]
    other.source.seek({grown: 20}, {grown: last_record(reader, 19)})
    other.read_to({grown: 80})
    assert other.values(grown) == values(100, 160)
    assert last_record(other, 79).leader_epoch > last_record(reader, 19).leader_epoch


def test_reading_resumes_after_retention_has_removed_the_last_record(make: Make) -> None:
    """Retention has removed all that was read, and nothing else."""
    log = make(2, 10)
    reader = start_reading(log.open(), {0: None, 1: None})
    reader.read_to({0: 10, 1: 10})
    last = last_record(reader, 9)
    log.trim(0, 10)
    reader.read_from({0: 10, 1: 5}, {0: last})
    log.append(0, values(10, 12))
    reader.read_to({0: 12, 1: 10})
    assert reader.events_of_type(OutOfRange) == []
    assert (reader.offsets(0), reader.offsets(1)) == ([10, 11], [5, 6, 7, 8, 9])


def test_a_revoked_partition_is_not_reassigned_before_the_next_poll(make: Make) -> None:
    log = make(2, 20)
    first = start_reading(log.open(poll_records=1), {0: 0, 1: 0})
    first.poll_until(lambda: first.records(0))
    second = Reader(log.open())
    poll_all_until([second, first], lambda: first.events_of_type(Revoked))
    assert first.events[-1] == Revoked(frozenset({0, 1}))
    second.poll_times(20)
    assert second.events == []
    first.source.commit({0: 7})  # still assigned: the commit succeeds
    wait_until(lambda: log.read_committed_offsets() == {0: 7}, what="the commit")
    events = len(first.events)
    poll_all_until(
        [second, first], lambda: second.events_of_type(Assigned) and len(first.events_of_type(Assigned)) == 2
    )
    assert [type(e) for e in first.events[events:]] == [Assigned]
    assert first.owned | second.owned == {0, 1}
    for reader in (first, second):
        (partition,) = reader.owned
        reader.read_from({partition: 3})
        reader.read_to({partition: 20})
        assert reader.offsets(partition) == list(range(3, 20))
        assert not reader.records(1 - partition)


def test_an_evicted_member_loses_its_partitions_and_rejoins(make: Make) -> None:
    log = make(2, 5)
    reader = start_reading(log.open(), {0: 0, 1: 0})
    reader.read_to({0: 5, 1: 5})
    log.evict_all()
    reader.poll_until(lambda: reader.events_of_type(Lost))
    assert reader.events_of_type(Lost | Revoked) == [Lost(frozenset({0, 1}))]
    before = len(reader.records(0))
    assert reader.wait_for_assignment() == {0, 1}
    assert len(reader.records(0)) == before
    reader.source.seek({0: 1})
    reader.read_to({0: 5})


def test_close_leaves_the_group_at_once_and_is_idempotent(make: Make) -> None:
    log = make(2)
    first = Reader(log.open())
    second = Reader(log.open())
    poll_all_until([first, second], lambda: first.owned | second.owned == {0, 1})
    started = time.monotonic()
    first.source.close()
    first.source.close()
    second.poll_until(lambda: second.owned == {0, 1})
    assert time.monotonic() - started < PATIENCE_S / 2  # well before the session timeout


def test_close_during_a_rebalance_leaves_the_group(make: Make) -> None:
    log = make(1)
    first = join_group(log.open())
    second = Reader(log.open())
    poll_all_until([second, first], lambda: first.events_of_type(Revoked))
    first.source.close()
    assert second.wait_for_assignment(timeout_s=PATIENCE_S / 2) == {0}  # well before the session timeout


def test_a_recreated_topic_has_another_id_and_no_committed_offsets(make: Make) -> None:
    log = make(1)
    source = join_group(log.open()).source
    before = source.topic_id()
    assert before
    assert source.topic_id() == log.open().topic_id() == before
    source.commit({0: 4})
    wait_until(lambda: log.read_committed_offsets() == {0: 4}, what="the commit")
    log.recreate()
    assert source.topic_id() not in ("", before)
    wait_until(lambda: not source.committed(), what="the deletion of the offsets")


@pytest.mark.usefixtures("quick_metadata")
def test_new_partitions_are_assigned_without_a_restart(make: Make) -> None:
    log = make(1)
    reader = join_group(log.open())
    assert reader.source.partitions() == {0}
    log.add_partitions(3)
    reader.poll_until(lambda: reader.owned == {0, 1, 2})
    assert reader.source.partitions() == {0, 1, 2}
    log.append(2, values(0, 2))
    reader.source.seek({2: None})
    reader.read_to({2: 2})


def test_dead_letters_keep_the_record_and_add_the_reason(make: Make) -> None:
    log = make(1)
    letters, acknowledged = log.open_dead_letters()
    headers = [("trace", b"\x00\xff"), ("nothing", None), ("trace", b"again")]
    sent = [
        Record(41, b"[1, ", 1_700_000_000_000, b"key", headers),
        Record(42, None, 1_700_000_000_001, None, ()),  # neither key nor value
        Record(43, b"\x93NUMPY", 0, None, ()),
    ]
    for record in sent:
        letters.send(3, record, "undecodable", "the value is not JSON: é")
    letters.flush(PATIENCE_S)
    letters.flush(PATIENCE_S)
    received = acknowledged()
    assert [(r.value, r.key) for r in received] == [(r.value, r.key) for r in sent]
    own = [(name, value or None) for name, value in received[0].headers if not name.startswith("__connect")]
    assert own == headers  # except that a header without a value may have become an empty one
    for record, letter in zip(sent, received, strict=True):
        assert {name: value for name, value in letter.headers if name.startswith("__connect")} == {
            "__connect.errors.topic": log.name.encode(),
            "__connect.errors.partition": b"3",
            "__connect.errors.offset": b"%d" % record.offset,
            "__connect.errors.exception.class.name": b"undecodable",
            "__connect.errors.exception.message": "the value is not JSON: é".encode(),
            "__connect.errors.timestamp": b"%d" % record.timestamp,
        }
    letters.close()


def test_committed_offsets_are_those_of_the_group(make: Make) -> None:
    """Asked for while the assignment is handled: the worker compares them with its checkpoints before it reads."""
    log = make(3, 20)
    reader = join_group(log.open())
    assert reader.source.committed() == {}
    reader.source.seek({0: None, 1: None, 2: None})
    reader.read_to({0: 20, 1: 20, 2: 20})
    store = '{"store":"é"}'
    reader.source.commit({0: 7, 1: 20}, store)
    expected = {0: Committed(7, store), 1: Committed(20, store)}
    reader.poll_until(lambda: reader.source.committed() == expected)
    heir = Reader(log.open())
    assert heir.source.committed() == expected  # before it joins the group, which it does when it polls
    reader.poll_times(5, 0.2)
    assert reader.events_of_type(Revoked) == []
    reader.source.close()
    assert heir.wait_for_assignment() == {0, 1, 2}
    assert heir.source.committed() == expected
