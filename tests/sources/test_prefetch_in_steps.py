"""Records that become large are decoded in several steps: every record arrives once, in order, within the bounds."""

from collections.abc import Sequence
from contextlib import closing

import numpy as np

from streampca.sources.memory import MemorySource, MemoryTopic
from streampca.sources.prefetch import Prefetch
from streampca.stream.decoded import Decoded
from streampca.stream.events import Assigned, Event, Records, Vectors
from streampca.stream.record import offsets_of
from tests.kafka_broker import wait_until

STEP = 3


def decoded_in_steps(event: Records) -> Vectors:
    """At most three records, as vectors of 100 numbers."""
    records = event.records[:STEP]
    n = len(records)
    after = event.next if n == len(event.records) else event.records[n].offset
    decoded = Decoded(np.zeros((n, 100)), np.arange(n), [], np.ones(n, np.int64))
    return Vectors(event.partition, decoded, np.zeros(n, np.int64), records, after, event.end)


def waiting(source: Prefetch) -> Sequence[Event]:
    events: Sequence[Event] = wait_until(lambda: source.poll(0.5))
    return events


def test_every_record_arrives_once_and_in_order() -> None:
    topic = MemoryTopic(2)
    for partition in range(2):
        topic.append(partition, *[b"x"] * 100)
    offsets: dict[int, list[int]] = {0: [], 1: []}
    with closing(Prefetch(MemorySource(topic, batch=10), 10_000, 4000, decoded_in_steps)) as source:
        assert waiting(source) == [Assigned(frozenset({0, 1}))]
        source.seek({0: None, 1: None})
        while sum(map(len, offsets.values())) < 200:
            for event in waiting(source):
                assert isinstance(event, Vectors)
                assert event.count <= STEP
                offsets[event.partition] += offsets_of(event.records).tolist()
    assert offsets == {0: list(range(100)), 1: list(range(100))}


def test_what_is_not_decoded_yet_is_dropped_at_a_seek() -> None:
    topic = MemoryTopic()
    topic.append(0, *[b"x"] * 20)
    with closing(Prefetch(MemorySource(topic, batch=10), 10_000, 1, decoded_in_steps)) as source:
        waiting(source)
        source.seek({0: None})
        [event] = waiting(source)
        assert isinstance(event, Vectors)
        assert offsets_of(event.records).tolist() == [0, 1, 2]
        source.seek({0: 15})
        [event] = waiting(source)
        assert isinstance(event, Vectors)
        assert offsets_of(event.records).tolist() == [15, 16, 17]
