"""Reading ahead changes no promise: on the in-memory source, with queues so small that they are often full."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from streampca.errors import SourceError
from streampca.sources.memory import MemorySource, MemoryTopic, Pause, Step
from streampca.sources.prefetch import Prefetch
from streampca.stream.record import Assigned, Decoded, Event, Lost, OutOfRange, Records, Revoked, Undecoded, Vectors
from tests.kafka_broker import wait_until
from tests.sources.backends import unchanged

PARTITIONS = 3


class CountingSource(MemorySource):
    """Knows which threads called it, and how many records it handed over."""

    def __init__(self, topic: MemoryTopic, script: Sequence[Step] = (), batch: int = 10) -> None:
        super().__init__(topic, script, batch)
        self.threads: set[str] = set()
        self.polls = self.handed = 0

    def poll(self, timeout_s: float) -> Sequence[Event]:
        self.threads.add(threading.current_thread().name)
        self.polls += 1
        events = super().poll(timeout_s)
        self.handed += sum(len(e.records) for e in events if isinstance(e, Records))
        return events


@contextmanager
def reading(inner: MemorySource, records: int = 40, size: int = 10_000) -> Iterator[Prefetch]:
    source = Prefetch(inner, records, size, unchanged)
    try:
        yield source
    finally:
        source.close()
        assert not source._thread.is_alive()


def next_event(source: Prefetch) -> Event:
    """The next, when polls bring one each."""
    events: Sequence[Event] = wait_until(lambda: source.poll(0.5))
    assert len(events) == 1
    return events[0]


def quiet(inner: CountingSource) -> int:
    """How often it was polled, once that has come to rest."""
    seen = [-1]
    wait_until(lambda: seen[-1] == inner.polls or (seen.append(inner.polls), threading.Event().wait(0.1))[0])
    return inner.polls


@pytest.mark.parametrize(("records", "size"), [(40, 10_000), (10_000, 200)])
def test_a_flood_is_bounded_in_records_and_in_bytes(records: int, size: int) -> None:
    topic = MemoryTopic()
    topic.append(0, *[b"five5"] * 5000)
    inner = CountingSource(topic)
    with reading(inner, records, size) as source:
        assert next_event(source) == Assigned(frozenset({0}))
        source.seek({0: None})
        source.poll(0)
        quiet(inner)
        assert inner.handed <= 60
        offsets = [r.offset for _ in range(50) for e in source.poll(1) if isinstance(e, Records) for r in e.records]
    assert offsets == list(range(500))
    assert inner.threads == {"prefetch"}


def inflated(event: Records) -> Vectors:
    """Each record as a vector of 100 numbers."""
    n = len(event.records)
    decoded = Decoded(np.zeros((n, 100)), np.arange(n), [], np.ones(n, np.int64))
    return Vectors(event.partition, decoded, np.zeros(n, np.int64), [], range(n), event.next, event.end)


def test_a_flood_is_bounded_in_what_decoding_makes_of_it() -> None:
    topic = MemoryTopic()
    topic.append(0, *[b"x"] * 5000)
    inner = CountingSource(topic)
    source = Prefetch(inner, 10_000, 20_000, inflated)
    with closing(source):
        next_event(source)
        source.seek({0: None})
        source.poll(0)
        quiet(inner)
        assert inner.handed == 30  # 24,000 bytes
        events = [e for _ in range(50) for e in source.poll(1)]
    assert [e.next for e in events if isinstance(e, Vectors)] == list(range(10, 501, 10))


def test_what_decoding_raises_comes_after_what_was_decoded_before_it() -> None:
    topic = MemoryTopic(2)
    topic.append(0, b"good")
    topic.append(1, b"bad")

    def decode(event: Records) -> Event:
        if event.records[0].value == b"bad":
            raise SourceError("not for you")
        return inflated(event)

    source = Prefetch(MemorySource(topic), 10, 10_000, decode)
    with closing(source):
        next_event(source)
        source.seek({0: None, 1: None})
        event = next_event(source)
        assert isinstance(event, Vectors)
        assert event.partition == 0
        with pytest.raises(SourceError, match="not for you"):
            wait_until(lambda: source.poll(0.5))


def test_what_could_not_be_decoded_is_bounded_too_and_thrown_away_with_its_partition() -> None:
    topic = MemoryTopic()
    topic.append(0, *[b"x"] * 5000)
    inner = CountingSource(topic)
    source = Prefetch(
        inner, 40, 10_000, lambda event: Undecoded(event.partition, event.next - 10, 10, event.end, "away")
    )
    with closing(source):
        next_event(source)
        source.seek({0: None})
        assert next_event(source) == Undecoded(0, 0, 10, 5000, "away")
        quiet(inner)
        assert inner.handed == 50
        source.pause(frozenset({0}))
        assert source.poll(0.05) == []
        source.seek({0: 20})
        assert next_event(source) == Undecoded(0, 20, 10, 5000, "away")


@pytest.mark.parametrize("news", [Assigned, Revoked, Lost])
def test_the_source_is_not_polled_before_news_are_handled(news: type[Event]) -> None:
    topic = MemoryTopic()
    inner = CountingSource(topic)
    with reading(inner) as source:
        if news is not Assigned:
            assert isinstance(next_event(source), Assigned)
            source.seek({0: None})
            assert isinstance(next_event(source), Records)
            with topic.lock:
                topic.evict(inner) if news is Lost else topic.rebalance()
        assert isinstance(next_event(source), news)
        polls = quiet(inner)  # a worker that hangs now is found out by the group
        source.commit({0: 1})
        wait_until(lambda: topic.committed == {0: 1})
        assert inner.polls == polls
        source.poll(0)
        wait_until(lambda: inner.polls > polls)


@pytest.fixture
def full() -> Iterator[tuple[MemoryTopic, CountingSource, Prefetch]]:
    """A source whose queue is full of records of its one partition."""
    topic = MemoryTopic()
    topic.append(0, *[b"x"] * 100)
    inner = CountingSource(topic)
    with reading(inner) as source:
        next_event(source)
        source.seek({0: None})
        source.poll(0)
        quiet(inner)
        assert len(source._queue) > 2
        yield topic, inner, source


@pytest.mark.parametrize("news", [Revoked, Lost])
def test_what_waits_is_thrown_away_with_its_partition(
    full: tuple[MemoryTopic, CountingSource, Prefetch], news: type[Event]
) -> None:
    topic, inner, source = full
    with topic.lock:
        topic.evict(inner) if news is Lost else topic.rebalance()
    assert isinstance(next_event(source), Records)  # now there is room, so the source is polled
    quiet(inner)
    assert isinstance(next_event(source), news)
    assert isinstance(next_event(source), Assigned)


def test_what_waits_is_thrown_away_when_it_is_read_anew(full: tuple[MemoryTopic, CountingSource, Prefetch]) -> None:
    _, inner, source = full
    source.seek({0: 50})
    event = next_event(source)
    assert isinstance(event, Records)
    assert event.records[0].offset == 50
    quiet(inner)
    source.pause(frozenset({0}))
    assert source.poll(0.05) == []


def test_a_seek_that_comes_too_late_is_no_mistake() -> None:
    topic = MemoryTopic()
    topic.append(0, *[b"x"] * 9)
    topic.trim(0, 5)
    inner = CountingSource(topic)
    with reading(inner) as source:
        next_event(source)
        source.seek({0: 2})
        assert next_event(source) == OutOfRange(0, 2, 5, 9)
        with topic.lock:
            topic.evict(inner)
        wait_until(lambda: source._queue)
        source.seek({0: 5})
        source.pause(frozenset({0}))
        assert next_event(source) == Lost(frozenset({0}))


def test_an_error_comes_after_what_was_read_before_it() -> None:
    topic = MemoryTopic()
    topic.append(0, b"x")
    inner = CountingSource(topic, [1, Pause(), 1, SourceError("gone"), 1])
    with reading(inner) as source:
        next_event(source)
        source.seek({0: None})
        assert isinstance(next_event(source), Records)
        with pytest.raises(SourceError, match="gone"):
            wait_until(lambda: source.poll(0.5))
        polls = quiet(inner)
        source.poll(0)
        wait_until(lambda: inner.polls > polls)
        with pytest.raises(ValueError, match="not assigned"):
            source.seek({7: 0})
        topic.away = True
        with pytest.raises(TimeoutError):
            source.topic_id()
        inner.commit = lambda positions: 1 / 0  # type: ignore[method-assign]
        source.commit({0: 1})
        with pytest.raises(ZeroDivisionError):
            wait_until(lambda: source.poll(0.5))
    source.close()
    for call in (source.topic_id, lambda: source.poll(0), lambda: source.commit({})):
        with pytest.raises(ValueError, match="closed"):
            call()


class Consumer:
    """Reads as a worker does; `saved` is shared by all, as checkpoints are."""

    def __init__(self, topic: MemoryTopic, saved: dict[int, int], batch: int, records: int) -> None:
        self.inner = CountingSource(topic, batch=batch)
        self.source = Prefetch(self.inner, records, 10_000, unchanged)
        self.saved, self.at = saved, dict[int, int]()

    def poll(self) -> None:
        with self.source._changed:
            queue = self.source._queue
            assert queue.records == sum(polled.records for polled in queue._waiting)
            assert queue.size == sum(polled.size for polled in queue._waiting)
        for event in self.source.poll(0.005):
            match event:
                case Records(partition, records, next_):
                    assert [r.offset for r in records] == list(range(self.at[partition], next_))
                    self.at[partition] = next_
                case Assigned(partitions):
                    self.at = {p: self.saved.get(p, 0) for p in partitions}
                    self.source.seek(dict(self.at))
                case Revoked(partitions) | Lost(partitions):
                    assert partitions == self.at.keys()
                    if isinstance(event, Revoked):
                        self.saved.update(self.at)
                    self.at = {}

    def close(self) -> None:
        self.source.close()
        self.saved.update({p: at for p, at in self.at.items() if at >= self.saved.get(p, 0)})


ACTS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, PARTITIONS - 1), st.integers(1, 60)),
    st.tuples(st.just("poll"), st.integers(0, 5), st.integers(1, 8)),
    st.tuples(st.just("join"), st.integers(1, 30), st.integers(1, 60)),
    st.tuples(st.sampled_from(["evict", "leave", "seek"]), st.integers(0, 5), st.integers(0, 20)),
)


# Nothing is shrunk: an example that runs into a deadline takes long enough once.
@pytest.mark.slow
@settings(max_examples=40, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.lists(ACTS, max_size=40))
def test_every_record_comes_once_and_in_order_whatever_happens(acts: list[tuple[str, int, int]]) -> None:
    topic, saved = MemoryTopic(PARTITIONS), dict[int, int]()
    consumers = [Consumer(topic, saved, 10, 30)]
    try:
        for act, first, second in acts:
            one = consumers[first % len(consumers)]
            if act == "append":
                topic.append(first, *[b"value"] * second)
            elif act == "join" and len(consumers) < 3:
                consumers.append(Consumer(topic, saved, first, second))
            elif act == "poll":
                for _ in range(second):
                    one.poll()
            elif act == "evict":
                with topic.lock:
                    if not one.inner.evicted:
                        topic.evict(one.inner)
            elif act == "leave" and len(consumers) > 1:
                consumers.remove(one)
                one.close()
            elif act == "seek" and one.at:
                partition = min(one.at)
                one.at[partition] = min(one.at[partition], second)
                one.source.seek({partition: one.at[partition]})

        def all_read() -> bool:
            for consumer in consumers:
                consumer.poll()
            at = {p: o for consumer in consumers for p, o in consumer.at.items()}
            return at == {p: log.end for p, log in enumerate(topic.logs)}

        wait_until(all_read, 10, "the end of every partition")
        assert all(c.inner.threads <= {"prefetch"} for c in consumers)
    finally:
        for consumer in consumers:
            consumer.source.close()
