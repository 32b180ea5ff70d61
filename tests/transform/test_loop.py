"""Every record has one output, in order, whatever happens to its transactions."""

import time
from dataclasses import replace

import numpy as np
import orjson
import pytest
from hypothesis import given, settings, strategies as st

from streampca.consumer_group.events import (
    FieldNamesWithoutNumbers,
    OffsetsSkipped,
    PartitionsAssigned,
    RecordRejected,
    RestoreFailed,
    TransactionEnded,
)
from streampca.errors import (
    BadRecordError,
    InputError,
    OffsetGapError,
    TopicReplacedError,
)
from streampca.pca.past_scores import PastScores
from streampca.sources.record_times import ORIGINAL_TIMESTAMP_HEADER
from streampca.transform.arrow import ArrowPacker
from streampca.transform.record_packer import ORIGIN
from tests.errors import refusal
from tests.example_models import numbered
from tests.in_memory import Step
from tests.transform.harness import DEAD, Member, World, read_output_origin
from tests.worker.harness import run_until_refused

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


@settings(max_examples=60)
@given(data=st.data())
def test_each_record_has_one_output_whatever_fails(data: st.DataObject) -> None:
    world, now = World(0, 0), int(time.time() * 1000)
    times = st.sampled_from([-1, 0, now - 30 * DAY_MS, now - 2 * HOUR_MS, now - HOUR_MS // 2, now, now + DAY_MS])
    for timestamp in data.draw(st.lists(times, max_size=8)):
        world.append(data.draw(st.integers(0, 1)), data.draw(st.integers(1, 10)), timestamp=timestamp)
    for partition in range(2):
        world.topic.skip(partition, data.draw(st.integers(0, 2)))
    if all(log.end == 0 for log in world.topic.logs):
        return
    batch = st.integers(1, 9)
    steps: list[Step] = []
    packer = data.draw(st.sampled_from([None, ArrowPacker(message_bytes=300)]))
    member = Member(world, steps, batch=data.draw(batch), packer=packer)
    events = [st.just(lambda: world.topic.evict(member.source)), st.just(None), batch]
    steps += data.draw(st.lists(st.one_of(events), max_size=12))
    member.transactions.failures = data.draw(st.lists(st.sampled_from(["", "before", "after"]), max_size=6))
    limits = [data.draw(st.sampled_from([HOUR_MS // 4, HOUR_MS, DAY_MS, 2**62])) for _ in range(2)]
    member.transactions.takes = range(now - limits[0], now + limits[1] + 1)
    names = [f"message.timestamp.{side}.max.ms" for side in ("before", "after")]
    known = data.draw(st.sampled_from([{}, dict(zip(names, map(str, limits), strict=True))]))
    member.transactions.configs = known
    member.run()
    world.assert_each_once()
    for output in world.outputs() if packer is None else []:
        origin, own = read_output_origin(output.headers), dict(output.headers).get(ORIGINAL_TIMESTAMP_HEADER)
        time_ = world.topic.logs[origin.partition].records[origin.offset].timestamp
        assert (output.timestamp, own) in ((time_, None), (-1, b"%d" % time_))
        assert own or time_ < 0 or time_ in member.transactions.takes
        assert not own or not known or time_ not in member.transactions.takes


def test_key_timestamp_and_headers_are_kept_and_a_header_added() -> None:
    world = World()
    vector = np.arange(5.0)
    world.topic.append(0, vector.tobytes(), timestamp=1234, key=b"sensor")
    Member(world).run()
    (output,) = world.outputs()
    assert (output.key, output.timestamp, output.partition) == (b"sensor", 1234, 0)
    origin = b'{"model_version":7,"partition":0,"offset":0,"topic_id":"%s"}' % world.topic.id.encode()
    assert output.headers == [(ORIGIN, origin)]
    projected = numbered(7).model.project(vector[None])
    value = orjson.loads(output.value or b"")
    assert value["coordinates"] == pytest.approx(projected.coordinates[0].tolist())
    assert value["residual"] == pytest.approx(projected.residual[0])


def test_bad_records_are_dead_letters_of_the_same_transaction() -> None:
    world = World(3)
    world.topic.append(0, b"no vector", key=b"k")
    world.append(0, 2, seed=1)
    member = Member(world, on_bad_record="dead_letter")
    member.transactions.failures = ["before", "after"]
    member.run()
    (letter,) = world.written[DEAD]
    assert (letter.value, letter.key) == (b"no vector", b"k")
    assert ("__connect.errors.offset", b"3") in letter.headers
    assert world.origins() == {0: [0, 1, 2, 4, 5]}


@pytest.mark.parametrize("configured", [20_000, 30_000, None])
@pytest.mark.parametrize("packer", [None, ArrowPacker()])
def test_outputs_that_are_too_large_are_dead_letters(packer: ArrowPacker | None, configured: int | None) -> None:
    """Whether the topic's limit is known, was lowered while it runs, or is not known."""
    world = World(3)
    for size in (25_000, 21_000, 23_000):
        world.topic.append(0, np.arange(5.0).tobytes(), key=b"k" * size)
        world.append(0, 200, seed=1)
    member = Member(world, on_bad_record="dead_letter", packer=packer, batch=100)
    member.transactions.configs = {"max.message.bytes": str(configured)} if configured else {}
    member.transactions.takes_bytes = 20_000
    member.run()
    assert [letter.value for letter in world.written[DEAD]] == [np.arange(5.0).tobytes()] * 3
    for letter in world.written[DEAD]:
        assert ("__connect.errors.exception.class.name", b"output_too_large") in letter.headers
    assert world.origins() == {0: [offset for offset in range(606) if offset not in (3, 204, 405)]}


def test_a_wrong_clock_ends_no_member_and_costs_no_dead_letter() -> None:
    """The topics refuse the time of sending, so that all records have times of their own."""
    world = World()
    world.append(0, 3, timestamp=1000)
    world.topic.append(0, b"no vector", timestamp=2000)
    member = Member(world, on_bad_record="dead_letter")
    member.transactions.takes_time_of_sending = False
    member.run()
    assert [letter.timestamp for letter in world.written[DEAD]] == [2000]
    assert [output.timestamp for output in world.outputs()] == [1000] * 3
    assert world.is_done


def test_bad_records_are_skipped_on_request() -> None:
    world = World()
    world.topic.append(0, b"no vector", None)
    world.append(0, 2)
    member = Member(world, on_bad_record="skip").run()
    assert world.origins() == {0: [2, 3]}
    assert len(member.events.of_type(RecordRejected)) == 1
    counts = {"all": 4, "read": 4, "written": 2, "rejected": 1, "skipped": 1, "replaced": 0}
    assert [event.counts for event in member.events.of_type(TransactionEnded)] == [counts]
    assert not world.written[DEAD]


@settings(max_examples=20)
@given(deletes=st.lists(st.booleans(), min_size=1, max_size=30), batch=st.integers(1, 9))
@pytest.mark.parametrize("packer", [None, ArrowPacker(message_bytes=300)])
def test_deletes_have_no_output_and_are_committed(deletes: list[bool], batch: int, packer: ArrowPacker | None) -> None:
    """With the policy that stops at a bad record."""
    world = World()
    for is_delete in deletes:
        world.topic.append(0, None if is_delete else np.arange(5.0).tobytes())
    member = Member(world, batch=batch, packer=packer).run()
    written = [offset for offset, is_delete in enumerate(deletes) if not is_delete]
    assert world.origins() == ({0: written} if written else {})
    assert sum(event.counts["skipped"] for event in member.events.of_type(TransactionEnded)) == sum(deletes)
    assert world.is_done
    assert not world.written[DEAD]


def test_a_member_writes_nothing_and_ends_when_the_first_records_are_all_bad() -> None:
    world = World(0, 5)
    world.topic.append(0, *[b"no vector"] * 120)
    text = run_until_refused(Member(world, on_bad_record="dead_letter"))
    for part in ("partition 0 of readings: 100 records in a row", "(format, field)", "reads all of them again"):
        assert part in text
    assert not world.written[DEAD]
    assert not world.topic.committed.get(0)


def test_bad_records_do_not_end_a_group_that_has_committed() -> None:
    world = World(200, 0)
    Member(world, on_bad_record="dead_letter").run()
    world.topic.append(1, *[b"no vector"] * 120)
    world.append(1, 50)
    Member(world, on_bad_record="dead_letter").run()
    assert [int(dict(r.headers)["__connect.errors.offset"] or b"") for r in world.written[DEAD]] == [*range(120)]
    assert world.origins()[1] == [*range(120, 170)]


def test_a_member_commits_the_records_before_a_bad_one_and_stops() -> None:
    world = World(3)
    world.topic.append(0, b"no vector")
    with pytest.raises(BadRecordError, match=r"partition 0 of readings, offset 3: .*dead_letter_topic"):
        Member(world).run()
    assert world.origins() == {0: [0, 1, 2]}
    assert world.topic.committed == {0: 3}


def test_the_newest_model_is_used_as_soon_as_it_is_known() -> None:
    world = World(4)
    member = Member(world, [2, 1, 1, lambda: member.publish(9), 1, 1], batch=1)
    member.run()
    versions = [read_output_origin(output.headers).model_version for output in world.outputs()]
    assert versions == sorted(versions)
    assert set(versions) == {7, 9}


def test_a_model_of_another_shape_ends_a_member_before_outputs_are_mixed() -> None:
    world = World(4)
    member = Member(world, [1, 1, 1, lambda: member.publish(9, components=3)], batch=1)
    assert "holds outputs of 2 components of 5 dimensions, but model version 9 has 3" in refusal(InputError, member.run)
    before = list(world.outputs())
    with pytest.raises(InputError, match="must not be mixed"):
        Member(world).run()  # started again, it knows from the committed offsets
    assert world.outputs() == before
    assert before


def test_another_version_ends_a_member_before_outputs_of_two_bases_are_mixed() -> None:
    world = World(4)
    Member(world, version=7).run()
    world.append(0, 3)
    world.models.save(numbered(9))
    for version in (9, None):
        assert "holds outputs of model version 7" in refusal(InputError, Member(world, version=version).run)
    Member(world, version=7).run()
    world.assert_each_once()


@pytest.mark.parametrize("places", [0, 1, 2])
def test_partitions_without_a_place_in_the_output_topic_wait_until_it_has_grown(places: int) -> None:
    world = World(5, 6, 7)
    member = Member(world, batch=2)
    grow_later = iter([places] * 5)
    member.transactions.partitions = lambda topic: next(grow_later, 3)  # type: ignore[method-assign]
    member.run()
    world.assert_each_once()
    waiting = ", ".join(map(str, range(places, 3)))
    cause = f"projected has {places} partitions, so partitions {waiting} of readings wait"
    failures = member.events.of_type(RestoreFailed)
    assert len(failures) == 5 - bool(places)
    assert all(failure.cause.startswith(cause) for failure in failures)
    assert [sorted(event.positions) for event in member.events.of_type(PartitionsAssigned)] == [
        *([list(range(places))] if places else []),
        list(range(places, 3)),
    ]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_partition_that_has_waited_for_its_place_is_read_of_the_topic_that_the_others_are_read_of(
    is_replaced: bool,
) -> None:
    """If the topic is replaced while a partition waits, all partitions are read of the new topic."""
    world = World(5, 5)

    def count_partitions(topic: str) -> int:
        if len(member.events.of_type(RestoreFailed)) < 2:
            return 1
        if is_replaced and world.topic.id == former_id:
            world.topic.create(2)
            world.append(0, 9, seed=3)
            world.append(1, 4, seed=4)
        return 2

    former_id = world.topic.id
    member = Member(world, [3, 1, None, None, None])
    member.transactions.partitions = count_partitions  # type: ignore[method-assign]
    member.run()
    by_topic = {
        id_: [
            (origin.partition, origin.offset)
            for output in world.outputs()
            if (origin := read_output_origin(output.headers)).topic_id == id_
        ]
        for id_ in (former_id, world.topic.id)
    }
    if is_replaced:
        assert sorted(by_topic[world.topic.id]) == [(0, n) for n in range(9)] + [(1, n) for n in range(4)]
    else:
        world.assert_each_once()


def test_a_member_that_is_stopped_while_it_restores_takes_no_further_step() -> None:
    world = World(3)
    member = Member(world)
    steps: list[str] = []
    recover, partitions = member.transactions.recover, member.transactions.partitions

    def stopped_meanwhile() -> None:
        steps.append("recover")
        recover()
        member.transformer.stop("SIGTERM")

    def asked(topic: str) -> int:
        steps.append("partitions")
        return partitions(topic)

    member.transactions.recover, member.transactions.partitions = stopped_meanwhile, asked  # type: ignore[method-assign]
    member.run()
    assert steps == ["recover"]
    assert not world.topic.committed


def test_records_that_retention_has_removed_end_a_member_or_are_skipped() -> None:
    world = World(6)
    world.topic.committed[0] = 2
    world.topic.trim(0, 4)
    refusal(OffsetGapError, Member(world).run)
    member = Member(world, on_offset_gap="earliest").run()
    assert world.origins() == {0: [4, 5]}
    assert member.events.of_type(OffsetsSkipped) == [OffsetsSkipped(0, 2, 4)]


def test_a_log_that_was_cut_between_two_members_ends_the_next_or_is_skipped() -> None:
    world = World(6)
    world.topic.skip(0, 1)
    Member(world).run()
    world.topic.truncate(0, 4)
    world.append(0, 6, seed=1)
    assert "the log was cut at offset 4 or before and has grown again" in refusal(OffsetGapError, Member(world).run)
    assert world.origins() == {0: [*range(6)]}
    member = Member(world, on_offset_gap="earliest").run()
    assert world.origins() == {0: [*range(6), 7, 8, 9]}
    assert member.events.of_type(OffsetsSkipped) == [OffsetsSkipped(0, 4, 7, truncated=True)]
    world.append(0, 2, seed=2)
    Member(world).run()  # the record before its first one is in the log
    assert world.origins() == {0: [*range(6), *range(7, 12)]}


def test_offsets_without_records_leave_the_last_record_as_it_was() -> None:
    world = World(3)
    Member(world).run()
    assert world.topic.metadata[0] == f"k=2 d=5 topic={world.topic.id} last=2@0"
    world.topic.skip(0, 4)
    Member(world).run()
    assert world.topic.committed == {0: 7}
    assert world.topic.metadata[0].endswith(" last=2@0")


def test_a_new_topic_of_the_same_name_is_read_from_its_start() -> None:
    world = World(3)
    Member(world).run()
    late = dict(world.topic.committed), dict(world.topic.metadata)
    world.topic.create(1)
    world.append(0, 2, seed=1)
    Member(world).run()
    assert world.origins() == {0: [0, 1, 2, 0, 1]}
    world.topic.committed, world.topic.metadata = late  # by a commit that came after the deletion
    with pytest.raises(TopicReplacedError, match=f"not the topic that was read before .its id is {world.topic.id}"):
        Member(world).run()


@pytest.mark.parametrize("count", [2, 8])
def test_a_topic_that_is_created_again_while_it_is_read_is_read_from_its_start(count: int) -> None:
    """It may be as long already as the old one was read."""
    world = World(6)

    def replace_topic() -> None:
        world.topic.create(1)
        world.append(0, count, seed=1)

    Member(world, [1, 3, replace_topic, 3]).run()
    assert world.origins() == {0: [0, 1, 2, *range(count)]}


def test_only_unusual_records_are_written_on_request_and_all_are_committed() -> None:
    world = World()
    vectors = world.append(0, 200)
    model = numbered(8)
    model = replace(model, past_scores=PastScores.empty().with_scores(model.project(vectors).relative_scores))
    world.models.save(model)
    Member(world, batch=30, only_p_below=0.1).run()
    unusual = np.flatnonzero(model.project(vectors).p < 0.1)
    assert world.origins() == {0: unusual.tolist()}
    assert 5 < len(unusual) < 40
    assert list(orjson.loads(world.outputs()[0].value or b"")) == ["coordinates", "residual"]
    assert world.topic.committed == {0: 200}


@pytest.mark.parametrize(("names", "count"), [("abcde", 0), ("abcdx", 1)])
def test_a_name_that_none_of_the_first_records_has_is_reported_once(names: str, count: int) -> None:
    world = World()
    world.topic.append(0, *[orjson.dumps(dict.fromkeys("abcde", 1.5))] * 2100)
    member = Member(world, kind="json", field=",".join(names), batch=500).run()
    reported = [event.message for event in member.events.of_type(FieldNamesWithoutNumbers)]
    assert reported == ["none of the first records has a number at x: correct field if a name is misspelt"] * count
