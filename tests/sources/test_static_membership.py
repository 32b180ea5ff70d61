"""Members with a `group_instance_id` on a real broker: a restart moves no partition of another."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from streampca.errors import SourceError
from streampca.sources.events import Lost, Revoked
from tests.faulty_proxy import FaultyProxy
from tests.kafka_broker import Broker
from tests.sources.backends import OnKafka
from tests.sources.reader import Reader
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.usefixtures("quick_metadata")]

ALL = frozenset(range(4))
JOIN_GROUP = 11  # its API key in Kafka's protocol
POLL_S = 0.2  # as the worker; kafka-python gives up joining at the end of a poll


@pytest.fixture
def backend(kind: type[OnKafka], broker: Broker, topic: str) -> Iterator[OnKafka]:
    """A topic with four partitions, for each client."""
    with closing(kind(broker, topic, len(ALL))) as backend:
        yield backend


class Members:
    """Two static members that share the topic; all are polled."""

    def __init__(self, backend: OnKafka, session_timeout_s: float = 30) -> None:
        self.backend = backend
        self.session_timeout_s = session_timeout_s
        self.readers = {name: self.start(name) for name in ("a", "b")}
        self.wait(lambda: self.settled() == ALL)

    def start(self, name: str) -> Reader:
        return Reader(self.backend.open(group_instance_id=name, session_timeout_s=self.session_timeout_s))

    def owned(self) -> dict[str, frozenset[int]]:
        """The partitions of each."""
        return {name: reader.owned for name, reader in self.readers.items()}

    def settled(self) -> frozenset[int]:
        """The partitions of both, if none is of both."""
        a, b = self.owned().values()
        return a | b if a and b and not a & b else frozenset()

    def wait(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, {name: reader.events for name, reader in self.readers.items()}
            with ThreadPoolExecutor(len(self.readers)) as pool:  # at the same time, as workers do
                list(pool.map(lambda reader: reader.poll(POLL_S), self.readers.values()))

    def restart(self, name: str) -> None:
        """Close a member and open it again; meanwhile the other is polled."""
        self.readers.pop(name).source.close()
        next(iter(self.readers.values())).poll(POLL_S)
        self.readers[name] = self.start(name)


def test_a_restart_moves_no_partition(backend: OnKafka) -> None:
    """First one member, then the other: one of them leads the group. Afterwards, new partitions are assigned."""
    members = Members(backend)
    before = members.owned()
    for name, other in (("a", "b"), ("b", "a")):
        events = len(members.readers[other].events_of_type(Revoked | Lost))
        members.restart(name)
        members.wait(lambda: members.owned() == before)
        assert len(members.readers[other].events_of_type(Revoked | Lost)) == events
    backend.add_partitions(6)
    members.wait(lambda: members.settled() == frozenset(range(6)))


def test_the_partitions_of_a_member_that_stays_away_move(backend: OnKafka) -> None:
    members = Members(backend, session_timeout_s=2)
    gone = members.readers.pop("b")
    gone.source.close()
    members.wait(lambda: members.owned() == {"a": ALL})
    assert gone.events


def test_a_replaced_member_ends_with_an_error_that_says_what_to_do(backend: OnKafka) -> None:
    members = Members(backend)
    replaced = members.readers.pop("a")
    members.readers["a"] = members.start("a")
    members.wait(lambda: members.settled() == ALL)
    with pytest.raises(SourceError, match="give each worker a group_instance_id of its own"):
        members.wait(lambda: replaced.poll(POLL_S) and False)


def test_a_member_whose_own_request_arrived_late_ends_with_an_error_that_says_what_to_do(backend: OnKafka) -> None:
    """A connection was cut after a request to join: the group takes it for another member with the same identity.

    Neither side can tell the two cases apart, so the error names both.
    """
    broker = backend.broker
    with FaultyProxy(broker.proxy, broker.proxied) as proxy:
        proxy.hold(JOIN_GROUP)
        reader = Reader(backend.open(group_instance_id="a", bootstrap_servers=f"127.0.0.1:{broker.proxy}"))
        assert reader.wait_for_assignment() == ALL
        assert proxy.holds
        proxy.deliver()
        with pytest.raises(SourceError, match="a request of its own to join was cut, and arrived late"):
            reader.poll_until(lambda: False)
        reader.source.close()
    assert Reader(backend.open(group_instance_id="a")).wait_for_assignment() == ALL  # a new process goes on


def test_members_with_and_without_an_identity_share_the_topic(backend: OnKafka) -> None:
    """As while the setting is introduced."""
    readers = [Reader(backend.open(**({} if n == 1 else {"group_instance_id": f"{n}"}))) for n in range(3)]
    readers[0].poll_until(
        lambda: (
            any(reader.poll(POLL_S) and False for reader in readers[1:])
            or sorted(sorted(reader.owned) for reader in readers) == [[0, 1], [2], [3]]
        )
    )
