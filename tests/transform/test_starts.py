"""Where partitions are read from when the group's offsets are gone: no output is written twice, and none is missing."""

from dataclasses import replace
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings, strategies as st
from structlog.typing import EventDict

from streampca.consumer_group.events import LoopTicked, RestoreFailed
from streampca.errors import InputError, NoBrokerError, SettingsError, SourceError
from streampca.sources import topic_reader
from streampca.sources.base import Outgoing
from streampca.transform.arrow import ArrowPacker
from streampca.transform.record_packer import ORIGIN
from tests.errors import refusal
from tests.example_models import numbered
from tests.in_memory.coordinator import Transaction
from tests.transform.harness import DEAD, OUTPUT, Member, World

START_SETTINGS = [None, "outputs", "earliest", "latest", 0]


def forget_offsets(world: World) -> None:
    """Delete the group's offsets, as brokers do after a week without members."""
    world.topic.committed.clear()
    world.topic.metadata.clear()


def write(world: World, *origins: bytes, state: str = "committed", value: bytes = b"") -> None:
    """Write records with these values of the header of outputs to partition 0, in one transaction."""
    coordinator = world.topic.coordinator
    epoch = coordinator.begin("writer")
    records = [Outgoing(OUTPUT, 0, value, None, [(ORIGIN, origin)], -1) for origin in origins]
    coordinator.write("writer", epoch, records)
    if state != "open":
        getattr(coordinator, {"committed": "commit", "aborted": "abort"}[state])("writer", epoch)


def origin(offset: int, topic_id: str | None) -> bytes:
    """Return the value of the header of outputs; with None, as an earlier release has written it."""
    named = b"" if topic_id is None else b',"topic_id":"%s"' % topic_id.encode()
    return b'{"model_version":7,"partition":0,"offset":%d%s}' % (offset, named)


def find(world: World, start: str | int | None = None) -> int:
    """Return the position at which a member begins partition 0."""
    return Member(world, start=start).finder.find([0]).by_partition([0])[0].position


@settings(max_examples=40)
@given(data=st.data(), is_arrow=st.booleans())
def test_each_record_has_one_output_though_the_groups_offsets_are_gone_again_and_again(
    data: st.DataObject, is_arrow: bool
) -> None:
    world = World(0, 0)
    for seed in range(data.draw(st.integers(1, 5))):
        world.append(data.draw(st.integers(0, 1)), data.draw(st.integers(0, 9)), seed=seed)
        stops_after = data.draw(st.integers(0, 6), "turns until the member is killed")
        packer = ArrowPacker(message_bytes=300) if is_arrow else None
        member = Member(world, batch=data.draw(st.integers(1, 9)), packer=packer, start="outputs")
        turns = iter(range(100))

        def kill(event: Any, member: Member = member, turns: Any = turns, last: int = stops_after) -> None:
            if isinstance(event, LoopTicked) and next(turns) >= last:
                member.transformer.stop("killed")

        member._also_notify = kill
        member.transactions.failures = data.draw(st.lists(st.sampled_from(["", "before", "after"]), max_size=3))
        member.run()
        world.topic.coordinator.fence(member.transactions._id)  # its transaction has been open for too long
        if data.draw(st.booleans()):
            forget_offsets(world)
    if not world.is_done:
        Member(world, start="outputs", packer=ArrowPacker() if is_arrow else None).run()
    world.assert_each_once()


def test_transform_is_refused_where_it_would_write_outputs_twice() -> None:
    world = World(5, 3)
    Member(world).run()
    forget_offsets(world)
    text = refusal(SettingsError, Member(world).run)
    assert "no committed offset of partition 0 of readings" in text
    assert "partition 0 of projected holds the output of its record at offset 4" in text
    assert "set transform_start to outputs (behind this record), earliest, latest or a time" in text
    world.assert_each_once()


def test_a_member_that_lives_while_the_offsets_are_deleted_ends_before_it_writes_twice() -> None:
    world = World(5)
    member = Member(world, [5, 5, lambda: forget_offsets(world), lambda: world.topic.evict(member.source)])

    def append_when_committed(event: Any) -> None:
        if isinstance(event, LoopTicked) and member.turns == 4:
            world.append(0, 2, seed=1)

    member._also_notify = append_when_committed
    # The world is done after the first records, so the member must be kept alive.
    type_of_done = World.is_done
    try:
        World.is_done = property(lambda self: False)  # type: ignore[assignment,method-assign]
        assert "offset 4" in refusal(SettingsError, member.run)
    finally:
        World.is_done = type_of_done  # type: ignore[method-assign]


def test_members_with_models_of_two_shapes_that_begin_a_group_at_once_mix_no_outputs() -> None:
    """Only the owner of the lowest partition begins, even if it has no records."""
    world = World(0, 3)
    first = Member(world)
    world.models.save(numbered(8, k=3))
    second = Member(world)
    world.topic.committed[1] = 0  # as other tools commit, which name no shape
    assert "the member that reads partition 0 commits the first one" in refusal(TimeoutError, second.finder.find, [1])
    first.run()
    assert world.topic.committed == {0: 0, 1: 3}
    assert "but model version 8 has 3" in refusal(InputError, second.finder.find, [1])


@pytest.mark.parametrize("start", START_SETTINGS)
def test_a_partition_that_never_held_an_output_is_read_from_its_earliest_record(start: str | int | None) -> None:
    world = World(4)
    assert find(world, start) == {"latest": 4, 0: 4}.get(start, -1)  # no record has a time


@pytest.mark.parametrize("start", [None, "outputs"])
def test_outputs_of_a_first_start_that_was_killed_in_its_first_transaction_do_not_count(start: str | None) -> None:
    world = World(4)
    write(world, *(origin(offset, world.topic.id) for offset in range(3)), state="open")
    assert "transaction" in refusal(TimeoutError, find, world, start)  # it may still be committed
    world.topic.coordinator.fence("writer")
    assert find(world, start) == -1


def test_a_member_waits_for_a_transaction_that_hides_later_outputs() -> None:
    world = World(4)
    Member(world).run()
    forget_offsets(world)
    world.topic.coordinator.begin("dead member")
    world.topic.coordinator.logs[OUTPUT, 0].insert(1, (Transaction("dead member", 0.0), world.outputs()[0]))

    def end_transaction(event: Any) -> None:
        if isinstance(event, RestoreFailed):
            assert "partition 0 of projected cannot be read to its end" in event.cause
            world.topic.coordinator.logs[OUTPUT, 0].pop(1)

    Member(world, start="outputs", also_notify=end_transaction).run()
    world.assert_each_once()


@pytest.mark.parametrize("start", START_SETTINGS)
def test_an_output_topic_that_has_lost_its_first_records_is_refused_unless_the_start_is_chosen(
    start: str | int | None,
) -> None:
    world = World(4)
    world.topic.coordinator.first[OUTPUT, 0] = 1
    write(world, b"no origin", b"{}", state="committed")  # the record that is lost, and one of another program
    if start in (None, "outputs"):
        text = refusal(SettingsError, find, world, start)
        assert "partition 0 of projected does not tell what was written" in text
        assert "set transform_start to earliest, latest or a time" in text
    else:
        assert find(world, start) in (-1, 4)


@pytest.mark.parametrize(("error", "raised"), [(SourceError("x"), SourceError), (NoBrokerError("x"), TimeoutError)])
def test_outputs_that_cannot_be_read_end_the_member_unless_a_retry_can_help(
    error: SourceError, raised: type[Exception]
) -> None:
    def open_outputs() -> NoReturn:
        raise error

    finder = replace(Member(World(3)).finder, open_outputs=open_outputs)
    text = refusal(raised, finder.find, [0])
    assert ("right to read projected" in text) is (raised is SourceError)


def test_outputs_behind_lost_records_still_tell_where_to_continue() -> None:
    world = World(9)
    write(world, *(origin(offset, world.topic.id) for offset in range(5)))
    world.topic.coordinator.first[OUTPUT, 0] = 3
    assert find(world, "outputs") == 5
    assert "offset 4" in refusal(SettingsError, find, world)


@given(data=st.data())
def test_only_the_last_output_of_this_topic_counts_and_of_an_earlier_release(data: st.DataObject) -> None:
    """Outputs of a topic that had the same name do not count, nor do records that are no outputs."""
    world = World(50)
    ids = {"ours": world.topic.id, "former": "another", "earlier release": None, "none": ""}
    kinds = data.draw(st.lists(st.sampled_from([*ids, "foreign"]), max_size=12))
    last = -1
    for offset, kind in enumerate(kinds):
        if kind == "foreign":
            write(world, data.draw(st.sampled_from([b"", b"[]", b"{", b'{"offset":"x"}', b'{"partition":0}'])))
        else:
            write(world, origin(offset, ids[kind]))
            last = offset if kind != "former" else last
        write(world, origin(49, world.topic.id), state="aborted")
    assert find(world, "outputs") == (last + 1 if last >= 0 else -1)


@pytest.mark.parametrize("value", [b"", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff" + b"\x10\x00\x00\x00" * 9])
def test_a_value_that_begins_like_an_arrow_message_need_not_be_one(value: bytes) -> None:
    """Such as float32 outputs that begin with NaN."""
    world = World(9)
    write(world, origin(3, world.topic.id), value=value)
    assert find(world, "outputs") == 4


@pytest.mark.parametrize("aborted", [1, 99, 100, 499, 500, 2000])
def test_the_last_output_is_found_before_many_aborted_records(aborted: int) -> None:
    world = World(4)
    write(world, origin(1, world.topic.id), origin(2, world.topic.id))
    write(world, *[origin(3, world.topic.id)] * aborted, state="aborted")
    assert find(world, "outputs") == 3


def test_a_partition_that_ends_with_too_many_aborted_records_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_reader, "_STEPS", (100, 400))
    world = World(4)
    write(world, origin(2, world.topic.id))
    write(world, *[origin(3, world.topic.id)] * 500, state="aborted")
    assert "ends with many aborted ones" in refusal(SettingsError, find, world, "outputs")


@pytest.mark.parametrize(("start", "position"), [("outputs", 5), ("latest", 7), (1500, 6)])
def test_where_a_partition_begins_is_committed_at_once(start: str | int, position: int, logs: list[EventDict]) -> None:
    world = World(5)
    Member(world).run()
    forget_offsets(world)
    for timestamp in (1000, 2000):
        world.append(0, 1, timestamp=timestamp)
    member = Member(world, start=start)
    begun: list[int] = []

    def note(event: Any) -> None:
        if isinstance(event, LoopTicked) and world.topic.committed:
            begun.append(world.topic.committed[0])

    member._also_notify = note
    member.run()
    assert begun[0] >= position
    assert world.origins() == {0: [*range(5), *range(position, 7)]}
    assert [(line["transform_start"], line["partitions"]) for line in logs if line["event"] == "partitions begun"] == [
        (start, [0])
    ]
    world.append(0, 2, seed=2)
    Member(world).run()  # without the setting
    assert world.origins() == {0: [*range(5), *range(position, 9)]}


def test_the_beginning_is_committed_though_no_record_follows() -> None:
    world = World(5)
    Member(world).run()
    forget_offsets(world)
    Member(world, start="latest").run()
    assert world.topic.committed == {0: 5}
    Member(world).run()
    world.assert_each_once()


def test_only_partitions_without_a_committed_offset_begin_anew() -> None:
    world = World(5, 5)
    Member(world).run()
    del world.topic.committed[1], world.topic.metadata[1]
    Member(world, start="earliest").run()
    assert world.origins() == {0: [*range(5)], 1: [*range(5), *range(5)]}


def test_rejects_behind_the_last_output_may_be_written_again_but_outputs_are_not() -> None:
    world = World(3)
    world.topic.append(0, b"no vector")
    Member(world, on_bad_record="dead_letter").run()
    forget_offsets(world)
    world.append(0, 2, seed=1)
    Member(world, on_bad_record="dead_letter", start="outputs").run()
    assert world.origins() == {0: [0, 1, 2, 4, 5]}
    assert len(world.written[DEAD]) == 2


def test_a_member_is_not_refused_because_another_one_writes_the_first_outputs_meanwhile() -> None:
    world = World(5)
    starting = Member(world)
    committed, looks = starting.source.committed, []

    def look() -> Any:
        looks.append(committed())
        if len(looks) == 1:
            Member(world).run()
        return looks[-1]

    starting.source.committed = look  # type: ignore[method-assign]
    assert starting.finder.find([0]).by_partition([0])[0].position == 5
    assert looks[0] == {}


def test_a_member_waits_if_offsets_are_deleted_while_it_looks_for_the_last_outputs() -> None:
    """As brokers do with a topic: partition 0 had an offset at first, and partition 1 never had one."""
    world = World(5, 0)
    Member(world).run()
    world.topic.committed.pop(1, None)
    starting = Member(world, start="outputs")
    committed, looks = starting.source.committed, []

    def look() -> Any:
        looks.append(committed())
        forget_offsets(world)
        return looks[-1]

    starting.source.committed = look  # type: ignore[method-assign]
    assert "were deleted" in refusal(TimeoutError, starting.finder.find, [0, 1])
    assert looks[0].keys() == {0}
    assert looks[1] == {}
