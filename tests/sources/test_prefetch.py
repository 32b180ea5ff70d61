"""Prefetching keeps the contract of sources, on the in-memory source with queues that are often full."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

import numpy as np
import pytest

from streampca.errors import SourceError
from streampca.formats.record import Decoded, offsets_of
from streampca.sources.events import Assigned, Event, Lost, OutOfRange, Records, Revoked, Undecoded, Vectors
from streampca.sources.prefetch import Prefetch
from tests.errors import refusal
from tests.in_memory import MemorySource, MemoryTopic, Step
from tests.sources.backends import unchanged
from tests.waiting import wait_until


class CountingSource(MemorySource):
    """Counts its polls and returned records, and records which threads polled it."""

    def __init__(self, topic: MemoryTopic, script: Sequence[Step] = (), batch: int = 10) -> None:
        super().__init__(topic, script, batch)
        self.threads: set[str] = set()
        self.polls = self.returned = 0

    def poll(self, timeout_s: float) -> Sequence[Event]:
        self.threads.add(threading.current_thread().name)
        self.polls += 1
        events = super().poll(timeout_s)
        self.returned += sum(len(e.records) for e in events if isinstance(e, Records))
        return events


def topic_with(*partitions: Sequence[bytes]) -> MemoryTopic:
    """A topic whose partitions have records with these values."""
    topic = MemoryTopic(len(partitions))
    for partition, values in enumerate(partitions):
        topic.append(partition, *values)
    return topic


def filled(count: int, value: bytes = b"x") -> CountingSource:
    """A source of one partition with this number of equal records."""
    return CountingSource(topic_with([value] * count))


@contextmanager
def reading(
    inner: MemorySource, records: int = 40, size: int = 10_000, decode: Callable[[Records], Event] = unchanged
) -> Iterator[Prefetch]:
    """A source that reads the partitions assigned to it from the earliest records."""
    source = Prefetch(inner, records, size, decode)
    try:
        assigned = next_event(source)
        assert isinstance(assigned, Assigned)
        source.seek(dict.fromkeys(assigned.partitions))
        yield source
    finally:
        source.close()
        source._thread.join(30)
        assert not source._thread.is_alive()


def next_event(source: Prefetch) -> Event:
    """The next event, where each poll returns one."""
    events: Sequence[Event] = wait_until(lambda: source.poll(0.5))
    assert len(events) == 1
    return events[0]


def final_polls(source: Prefetch, inner: CountingSource) -> int:
    """The number of polls, once the thread may not poll any more: the queue is full, or holds what must be handled."""
    wait_until(lambda: not source._may_poll())
    return inner.polls


def decoded_to_100(event: Records, most: int = 1000) -> Vectors:
    """Decode each record, or the first ones, to a vector of 100 numbers."""
    records = event.records[:most]
    n = len(records)
    after = event.next if n == len(event.records) else event.records[n].offset
    decoded = Decoded(np.zeros((n, 100)), np.arange(n), [], np.ones(n, np.int64))
    return Vectors(decoded, np.zeros(n, np.int64), records, after, event.partition, event.end)


@pytest.mark.parametrize(
    ("records", "size", "decode", "returned"),
    [
        (40, 10_000, unchanged, range(40, 61)),
        (10_000, 200, unchanged, range(40, 61)),
        (10_000, 20_000, decoded_to_100, [30]),  # 24,000 bytes
    ],
)
def test_prefetching_is_limited_in_records_and_bytes(
    records: int, size: int, decode: Callable[[Records], Event], returned: Collection[int]
) -> None:
    """As they are read, or as they are decoded."""
    inner = filled(5000, b"five5")

    def decoded(event: Records) -> Event:
        inner.threads.add(threading.current_thread().name)
        return decode(event)

    with reading(inner, records, size, decoded) as source:
        source.poll(0)
        final_polls(source, inner)
        assert inner.returned in returned
        events = [next_event(source) for _ in range(50)]
    assert [record.offset for event in events for record in event.records] == list(range(500))
    assert inner.threads == {"prefetch"}


def test_a_decoding_error_is_raised_after_earlier_records() -> None:
    def decode(event: Records) -> Event:
        if event.records[0].value == b"bad":
            raise SourceError("not for you")
        return decoded_to_100(event)

    with reading(MemorySource(topic_with([b"good"], [b"bad"])), decode=decode) as source:
        event = next_event(source)
        assert (type(event), event.partition) == (Vectors, 0)
        assert "not for you" in refusal(SourceError, wait_until, lambda: source.poll(0.5))


def test_undecoded_records_count_towards_the_limit_and_are_dropped_with_their_partition() -> None:
    inner = filled(5000)

    def decode(event: Records) -> Event:
        return Undecoded(event.partition, event.next - 10, 10, event.end, "away")

    with reading(inner, decode=decode) as source:
        assert next_event(source) == Undecoded(0, 0, 10, 5000, "away")
        final_polls(source, inner)
        assert inner.returned == 50
        source.pause(frozenset({0}))
        assert source.poll(0.05) == []
        source.seek({0: 20})
        assert next_event(source) == Undecoded(0, 20, 10, 5000, "away")


@pytest.mark.parametrize("change", [Assigned, Revoked, Lost])
def test_the_source_is_not_polled_until_a_rebalance_is_handled(change: type[Event]) -> None:
    topic = MemoryTopic()
    inner = CountingSource(topic)
    opened = closing(Prefetch(inner, 40, 10_000, unchanged)) if change is Assigned else reading(inner)
    with opened as source:
        if change is not Assigned:
            assert isinstance(next_event(source), Records)
            with topic.lock:
                topic.evict(inner) if change is Lost else topic.rebalance()
        assert isinstance(next_event(source), change)
        polls = final_polls(source, inner)  # so the group detects a worker that hangs here
        source.commit({0: 1})
        wait_until(lambda: topic.committed == {0: 1})
        assert inner.polls == polls
        source.poll(0)
        wait_until(lambda: inner.polls > polls)


def test_a_seek_to_a_lost_partition_is_ignored() -> None:
    topic = topic_with([b"x"] * 9)
    topic.trim(0, 5)
    inner = CountingSource(topic)
    with reading(inner) as source:
        source.seek({0: 2})
        assert next_event(source) == OutOfRange(0, 2, 5, 9)
        with topic.lock:
            topic.evict(inner)
        wait_until(lambda: source._queue)
        source.seek({0: 5})
        source.pause(frozenset({0}))
        assert next_event(source) == Lost(frozenset({0}))


def test_an_error_is_raised_after_earlier_records() -> None:
    topic = topic_with([b"x"])
    inner = CountingSource(topic, [1, None, 1, SourceError("gone"), 1])
    with reading(inner) as source:
        assert isinstance(next_event(source), Records)
        assert "gone" in refusal(SourceError, wait_until, lambda: source.poll(0.5))
        polls = final_polls(source, inner)
        source.poll(0)
        wait_until(lambda: inner.polls > polls)
        assert "not assigned" in refusal(ValueError, source.seek, {7: 0})
        topic.away = True
        refusal(TimeoutError, source.topic_id)
        inner.commit = lambda positions, metadata="": 1 / 0  # type: ignore[method-assign]
        source.commit({0: 1})
        refusal(ZeroDivisionError, wait_until, lambda: source.poll(0.5))
    source.close()
    for call in (source.topic_id, lambda: source.poll(0), lambda: source.commit({})):
        assert "closed" in refusal(ValueError, call)


@pytest.mark.parametrize("method", ["partitions", "status"])
def test_an_error_that_ends_the_thread_is_raised_by_every_call(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    inner = filled(1)
    with reading(inner) as source:
        assert isinstance(next_event(source), Records)
        monkeypatch.setattr(inner, method, lambda: 1 / 0)
        calls = [source.topic_id, lambda: source.poll(0), lambda: source.seek({0: 0}), lambda: source.commit({0: 1})]
        refusal(ZeroDivisionError, wait_until, lambda: source.poll(0.5))
        source._thread.join(30)
        for call in calls:
            refusal(ZeroDivisionError, call)
    assert not inner._topic.is_joined(inner)


STEP = 3
decoded_in_steps = partial(decoded_to_100, most=STEP)


def test_every_record_arrives_once_and_in_order() -> None:
    topic = topic_with([b"x"] * 100, [b"x"] * 100)
    offsets: dict[int, list[int]] = {0: [], 1: []}
    with reading(MemorySource(topic, batch=10), 10_000, 4000, decoded_in_steps) as source:
        while sum(map(len, offsets.values())) < 200:
            for event in wait_until(lambda: source.poll(0.5)):
                assert event.count <= STEP
                offsets[event.partition] += offsets_of(event.records).tolist()
    assert offsets == {0: list(range(100)), 1: list(range(100))}


def test_what_is_not_decoded_yet_is_dropped_at_a_seek() -> None:
    with reading(filled(20), 10_000, 1, decoded_in_steps) as source:
        for position in (0, 15):
            source.seek({0: position})
            event = next_event(source)
            offsets = offsets_of(event.records).tolist()
            assert (type(event), offsets) == (Vectors, [position, position + 1, position + 2])
