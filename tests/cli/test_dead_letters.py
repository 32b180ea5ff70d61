"""Replays of dead letters in memory: each record is sent once, whatever is selected, interrupted and repeated."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from streampca.cli import dead_letters as command
from streampca.cli.dead_letters import LetterFilter, group_letters, select_letters, send_letters
from streampca.errors import SourceError
from streampca.formats.record import Record
from streampca.sources import dead_letters
from streampca.sources.base import Outgoing
from streampca.sources.dead_letters import DeadLetter, DeadLetterTopic, LetterStatus, dead_letter_headers, read_origin
from tests.in_memory import MemoryDeadLetters

TOPIC = "readings"
DEAD = "readings-dead"
REASONS = ["wrong_length", "undecodable", "no_value"]


class Broker:
    """A topic and its dead-letter topic with two partitions; a reader and a producer of both."""

    def __init__(self) -> None:
        self.sent: list[Outgoing] = []
        self.largest_transaction = 0  # in records
        self.dead: dict[int, list[Record]] = {0: [], 1: []}
        self.transactions_until_failure = 1_000
        self.commits_when_failing = False  # the failing transaction is committed, and only the answer is lost

    def read(self) -> Iterator[tuple[int, Record]]:
        for partition, records in self.dead.items():
            yield from ((partition, record) for record in list(records))

    def send(self, records: Sequence[Outgoing]) -> None:
        self.transactions_until_failure -= 1
        self.largest_transaction = max(self.largest_transaction, len(records))
        fails = self.transactions_until_failure < 0
        if fails and not self.commits_when_failing:
            raise SourceError("killed")
        for record in records:
            if record.topic == DEAD:
                self.append(record.partition, record.key, record.value, record.headers, 0)
            else:
                self.sent.append(record)
        if fails:
            raise SourceError("no answer")

    def append(self, partition: int, key: Any, value: Any, headers: Any, timestamp: int) -> None:
        """Write a record to the dead-letter topic."""
        log = self.dead[partition]
        offset = log[-1].offset + 2 if log else 0  # between two records is the marker of a transaction
        log.append(Record(offset, value, timestamp, key, headers))

    def reject(
        self,
        letter_partition: int,
        record: Record,
        partition: int,
        reason: str,
        topic: str = TOPIC,
        message: str = "wrong",
    ) -> None:
        """Write the dead letter of a record of `partition` of `topic`."""
        headers = dead_letter_headers(topic, partition, record, reason, message)
        self.append(letter_partition, record.key, record.value, headers, 0)


@st.composite
def filters(draw: st.DrawFn) -> LetterFilter:
    return LetterFilter(
        reasons=draw(st.lists(st.sampled_from(REASONS), max_size=2)),
        partitions=draw(st.lists(st.integers(0, 2), max_size=2)),
        since_ms=draw(st.none() | st.integers(0, 50)),
        until_ms=draw(st.none() | st.integers(0, 50)),
    )


# Which letters, how many transactions until one fails, and whether the failing one is committed.
REPLAYS = st.lists(st.tuples(filters(), st.integers(0, 4), st.booleans()), max_size=5)
# Partition of the letter, partition of its record, reason, and whether the record was rejected twice.
LETTERS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 2), st.sampled_from(REASONS), st.booleans()), max_size=40
)


@settings(deadline=None, max_examples=150)
@given(letters=LETTERS, replays=REPLAYS, size=st.integers(1, 7))
def test_every_record_is_sent_once(letters: list[tuple[int, int, str, bool]], replays: Any, size: int) -> None:
    broker = Broker()
    expected = {}  # number of a record → its partition
    for number, (letter_partition, partition, reason, is_repeated) in enumerate(letters):
        record = Record(number, b"%d" % number, number, b"key", [("own", b"\xff")])
        for _ in range(1 + is_repeated):
            broker.reject(letter_partition, record, partition, reason)
        expected[number] = partition
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "_MAX_LETTERS", size)
        all_letters = (LetterFilter(), 1_000, False)
        for chosen, transactions_until_failure, commits_when_failing in [*replays, all_letters, all_letters]:
            broker.transactions_until_failure = transactions_until_failure
            broker.commits_when_failing = commits_when_failing
            before = len(broker.sent)
            try:
                count = send_letters(broker.send, select_letters(broker.read, TOPIC, chosen), DEAD)
            except SourceError:
                pass
            else:
                assert count == len(broker.sent) - before
                assert not list(select_letters(broker.read, TOPIC, chosen))
    assert {int(record.value or b""): record.partition for record in broker.sent} == expected
    assert len(broker.sent) == len(expected)
    assert broker.largest_transaction <= size + len(broker.dead)  # with a replay note for each partition
    assert all(record.headers[0] == ("own", b"\xff") and record.key == b"key" for record in broker.sent)
    assert all(record.timestamp == int(record.value or b"") for record in broker.sent)


def test_letters_of_other_topics_are_listed_with_three_different_examples_and_not_sent() -> None:
    broker = Broker()
    for number in range(8):
        broker.reject(0, Record(number, b"a"), 1, "undecodable", "others", f"message {number // 2}")
    broker.append(1, None, b"not a letter", [], 0)
    topic = DeadLetterTopic(broker.read)
    [group] = group_letters(topic.letters())
    assert (group["topic"], group["reason"], group["waiting"], topic.other_records) == ("others", "undecodable", 8, 1)
    assert [example["offset"] for example in group["examples"]] == [0, 2, 4]
    assert not list(select_letters(broker.read, TOPIC, LetterFilter()))


def test_a_letter_is_repeated_only_if_its_value_is_the_same() -> None:
    broker = Broker()
    for value in (b"a", b"b", b"b"):
        broker.reject(0, Record(3, value, 1), 0, "undecodable")
    assert [letter.status for letter in DeadLetterTopic(broker.read).letters()] == ["waiting", "waiting", "repeated"]


@pytest.mark.parametrize("spoil", [lambda h: h[1:], lambda h: [*h, ("x", b"")], lambda h: [(n, b"x") for n, _ in h]])
def test_a_record_with_other_headers_is_not_a_dead_letter(spoil: Callable[[Any], Any]) -> None:
    headers = dead_letter_headers(TOPIC, 0, Record(3, b"x"), "undecodable", "no")
    assert read_origin(headers)
    assert read_origin(spoil(headers)) is None


def test_letters_that_the_memory_sink_writes_can_be_read() -> None:
    letters = MemoryDeadLetters(TOPIC)
    letters.send(2, Record(3, b"x", 4, b"k", [("own", None)]), "undecodable", "why \ud800")
    letters.flush(0)
    origin = read_origin(letters.records[0].headers)
    assert origin[:5] == (TOPIC, 2, 3, "undecodable", "why \\ud800")
    assert (origin.headers, origin.timestamp) == ([("own", None)], 4)


@pytest.mark.parametrize(
    ("earlier", "counted"), [(b"1", b"2"), (b"", b"1"), (b"-3", b"1"), (b"x", b"1"), (b"9" * 5000, b"1"), (None, b"1")]
)
def test_a_replay_counts_earlier_replays(earlier: bytes | None, counted: bytes) -> None:
    rejected = Record(3, b"x", headers=[("streampca.replays", earlier)])
    headers = dead_letter_headers(TOPIC, 0, rejected, "undecodable", "no")
    origin = read_origin(headers)
    assert origin
    letter = DeadLetter(0, 0, Record(0, b"x", headers=headers), origin, LetterStatus.WAITING)
    assert dict(letter.to_replay("dead").headers)["streampca.replays"] == counted


@given(st.sets(st.integers(0, 60)))
def test_a_replay_note_holds_exactly_its_offsets(offsets: set[int]) -> None:
    note = dead_letters.make_replay_note("dead", 0, sorted(offsets))
    assert dead_letters.read_replay_note(Record(0, note.value, headers=note.headers)) == sorted(offsets)


@pytest.mark.parametrize("value", [None, b"", b"{}", b"1", b"[[1]]", b'["a"]', b"[1e999]", b"[" * 100_000])
def test_a_damaged_replay_note_is_not_read(value: bytes | None) -> None:
    note = dead_letters.make_replay_note("dead", 0, [1])
    assert not dead_letters.read_replay_note(Record(0, value, headers=note.headers))
