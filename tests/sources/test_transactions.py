"""Records and offsets of one transaction become visible together, whoever implements it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from streampca.errors import SourceError
from streampca.fold.events import Assigned
from streampca.sources.base import Committed, Source
from streampca.sources.clients import create_client, create_transactions
from streampca.sources.memory import MemorySource, MemoryTopic
from streampca.sources.memory.transactions import MemoryTransactions, written_records
from streampca.sources.transactions import Outgoing, TransactionFailedError, Transactions
from tests.broker_process import PATIENCE_S
from tests.kafka_broker import Broker
from tests.sources.backends import settings_for

pytestmark = pytest.mark.usefixtures("patient")

Member = tuple[Source, Transactions]


class Place(ABC):
    """A topic with two partitions and its group, and a topic `output` beside it."""

    output: str

    def __init__(self) -> None:
        self.members: list[Member] = []

    def join(self, name: str | None = None) -> Member:
        """A member of the group that has partitions; closed at the end of the test."""
        member = self._member(name)
        self.members.append(member)
        source, transactions = member
        deadline = time.monotonic() + PATIENCE_S
        while not any(isinstance(event, Assigned) for event in source.poll(0.2)):
            assert time.monotonic() < deadline
        transactions.recover()
        return member

    @abstractmethod
    def _member(self, name: str | None) -> Member: ...
    @abstractmethod
    def evict(self, member: Member) -> None:
        """Remove a member from the group, without it noticing."""

    @abstractmethod
    def written(self) -> Sequence[Any]:
        """What a reader of committed records sees in the output."""


class InMemory(Place):
    output = "output"

    def __init__(self) -> None:
        super().__init__()
        self.topic, self._written = MemoryTopic(2), written_records()

    def _member(self, name: str | None) -> Member:
        source = MemorySource(self.topic)
        return source, MemoryTransactions(self.topic, source, self._written)

    def evict(self, member: Member) -> None:
        assert isinstance(member[0], MemorySource)
        self.topic.evict(member[0])

    def written(self) -> Sequence[Any]:
        return self._written[self.output]


class OnKafka(Place):
    client = "kafka-python"

    def __init__(self, broker: Broker, topic: str) -> None:
        super().__init__()
        self.broker, self.topic = broker, broker.create_topic(topic, 2)
        self.output = broker.create_topic(f"{topic}-output", 2, max_message_bytes=100_000)

    def _member(self, name: str | None) -> Member:
        settings = settings_for(
            self.broker, self.topic, kafka_client=self.client, group_instance_id=name, session_timeout_s=6
        )
        source = create_client(settings)
        return source, create_transactions(settings, source, [self.output])

    def evict(self, member: Member) -> None:
        from kafka.admin import MemberToRemove

        members = [MemberToRemove(member_id=found["member_id"]) for found in self.broker.members(self.topic)]
        self.broker.admin.remove_group_members(self.topic, members)

    def written(self) -> Sequence[Any]:
        return self.broker.read_all(self.output)


class OnConfluent(OnKafka):
    client = "confluent"


BROKER = pytest.mark.broker
ALL = [InMemory, pytest.param(OnKafka, marks=BROKER), pytest.param(OnConfluent, marks=BROKER)]


@pytest.fixture(params=ALL)
def place(request: pytest.FixtureRequest, topic: str) -> Iterator[Place]:
    made = request.param() if request.param is InMemory else request.param(request.getfixturevalue("broker"), topic)
    yield made
    for source, transactions in made.members:
        transactions.close()
        source.close()


def record(place: Place, value: bytes | None, **more: Any) -> Outgoing:
    return Outgoing(**{"topic": place.output, "partition": 0, "value": value, "key": None, "headers": [],
                       "timestamp": -1} | more)  # fmt: skip


def values(place: Place) -> list[bytes]:
    return [found.value for found in place.written()]


def test_records_and_offsets_are_committed_together(place: Place) -> None:
    source, transactions = place.join()
    transactions.send([record(place, b"a", key=b"k", headers=[("h", b"v")], timestamp=1234)])
    transactions.send([record(place, None, partition=1)])
    offsets = {0: Committed(7, "as agreed"), 1: Committed(3, "é" * 15)}
    transactions.commit(offsets)
    first, second = place.written()
    assert (first.value, first.key, list(first.headers), first.timestamp) == (b"a", b"k", [("h", b"v")], 1234)
    assert (second.value, second.partition) == (None, 1)
    assert source.committed([0, 1]) == offsets
    assert transactions.partitions(place.output) == 2


def test_nothing_of_an_aborted_transaction_is_visible(place: Place) -> None:
    source, transactions = place.join()
    transactions.send([record(place, b"a")])
    transactions.abort()
    assert source.committed([0]) == {}
    transactions.send([record(place, b"b")])
    transactions.commit({0: Committed(1)})
    assert values(place) == [b"b"]


def test_offsets_can_be_committed_without_records(place: Place) -> None:
    source, transactions = place.join()
    transactions.commit({0: Committed(5)})
    assert source.committed([0])[0].offset == 5


def test_a_member_that_the_group_has_given_up_cannot_commit(place: Place) -> None:
    source, transactions = place.join()
    transactions.send([record(place, b"a")])
    place.evict((source, transactions))
    with pytest.raises(TransactionFailedError):
        transactions.commit({0: Committed(1)})
    assert source.committed([0]) == {}
    deadline = time.monotonic() + PATIENCE_S
    while not any(isinstance(event, Assigned) for event in source.poll(0.2)):
        assert time.monotonic() < deadline
    transactions.recover()
    transactions.send([record(place, b"b")])
    transactions.commit({0: Committed(1)})
    assert values(place) == [b"b"]


def test_nothing_is_sent_after_a_failure_until_it_has_recovered(place: Place) -> None:
    source, transactions = place.join()
    place.evict((source, transactions))
    with pytest.raises(TransactionFailedError):
        transactions.commit({0: Committed(1)})
    with pytest.raises(TransactionFailedError):
        transactions.send([record(place, b"a")])


@pytest.fixture(params=[OnKafka, OnConfluent])
def kafka(request: pytest.FixtureRequest, broker: Broker, topic: str) -> Iterator[OnKafka]:
    made = request.param(broker, topic)
    yield made
    for source, transactions in made.members:
        transactions.close()
        source.close()


@pytest.mark.broker
def test_a_successor_of_the_same_name_ends_what_is_open(kafka: OnKafka) -> None:
    _, before = kafka.join("one")
    before.send([record(kafka, b"lost")])
    _, after = kafka.join("one")
    after.send([record(kafka, b"kept")])
    after.commit({0: Committed(1)})
    with pytest.raises(TransactionFailedError):
        before.commit({0: Committed(1)})
    assert values(kafka) == [b"kept"]


@pytest.mark.broker
def test_a_membership_that_another_thread_loses_during_a_commit_is_read_once(
    kafka: OnKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, transactions = kafka.join()
    transactions.send([record(kafka, b"a")])
    memberships = iter([source.membership])  # type: ignore[attr-defined]  # then it is lost
    lost = property(lambda self: next(memberships, None), lambda self, value: None)
    monkeypatch.setattr(type(source), "membership", lost, raising=False)
    transactions.commit({0: Committed(1)})
    assert source.committed([0])[0].offset == 1
    assert values(kafka) == [b"a"]


@pytest.mark.broker
def test_a_record_that_is_too_large_is_no_failure_to_retry(kafka: OnKafka) -> None:
    _, transactions = kafka.join()

    def write() -> None:
        transactions.send([record(kafka, bytes(200_000))])
        transactions.commit({0: Committed(1)})

    with pytest.raises(SourceError, match=f"too large for topic {kafka.output}"):
        write()


@pytest.mark.broker
def test_a_topic_that_does_not_exist_is_reported_at_the_start(broker: Broker, topic: str) -> None:
    broker.create_topic(topic)
    for client in ("kafka-python", "confluent"):
        settings = settings_for(broker, topic, kafka_client=client)
        source = create_client(settings)
        with pytest.raises(SourceError, match="there is no topic nowhere"):
            create_transactions(settings, source, ["nowhere"])
        source.close()
