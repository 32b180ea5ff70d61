"""Records and offsets of one transaction become visible together, whoever implements it."""

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from kafka.errors import KafkaTimeoutError

from streampca.errors import SourceError
from streampca.sources.base import Committed, Outgoing, RecordRefusedError, TransactionFailedError
from streampca.sources.client_transactions import Failure
from streampca.sources.clients import create_transactions
from streampca.sources.confluent import transactions as client
from streampca.sources.events import Lost
from tests.errors import refusal
from tests.kafka_broker import SASL, USER
from tests.sources.backends import Backend, InMemory, OnConfluent, OnKafka
from tests.sources.reader import Reader

pytestmark = pytest.mark.usefixtures("long_timeouts")

ON_BROKER = [pytest.param(kind, marks=pytest.mark.broker) for kind in (OnKafka, OnConfluent)]
on_broker = pytest.mark.parametrize("log", ON_BROKER, indirect=True)


@pytest.fixture(params=[InMemory, *ON_BROKER])
def log(request: pytest.FixtureRequest, topic: str) -> Iterator[Backend]:
    """A topic with two partitions and its group, and an output topic beside it."""
    broker = () if request.param is InMemory else (request.getfixturevalue("broker"),)
    with closing(request.param(*broker, topic, 2)) as log:
        yield log


def record(log: Backend, value: bytes | None, **more: Any) -> Outgoing:
    return Outgoing(**{"topic": log.output, "partition": 0, "value": value, "key": None, "headers": [],
                       "timestamp": -1} | more)  # fmt: skip


def values(log: Backend) -> list[bytes]:
    return [written.value for written in log.read_output()]


def test_all_of_a_transaction_is_visible_or_nothing(log: Backend) -> None:
    source, transactions = log.join()
    assert transactions.partitions(log.output) == 2
    transactions.send([record(log, b"aborted")])
    transactions.abort()
    assert source.committed() == {}
    transactions.send([record(log, b"a", key=b"k", headers=[("h", b"v")], timestamp=1234)])
    transactions.send([record(log, None, partition=1)])
    offsets = {0: Committed(7, "as agreed"), 1: Committed(3, "é" * 15)}
    transactions.commit(offsets)
    first, second = log.read_output()
    assert (first.value, first.key, list(first.headers), first.timestamp) == (b"a", b"k", [("h", b"v")], 1234)
    assert (second.value, second.partition) == (None, 1)
    assert source.committed() == offsets
    transactions.commit({0: Committed(8)})  # without records
    assert source.committed()[0].offset == 8


@on_broker
def test_partitions_that_are_added_to_the_output_topic_are_written_to_after_a_failed_transaction(log: OnKafka) -> None:
    _, transactions = log.join()
    transactions.send([record(log, b"a")])
    transactions.commit({})
    log.broker.add_partitions(log.output, 3)
    with suppress(TransactionFailedError):  # the producer does not know the partition yet
        transactions.send([record(log, b"b", partition=2)])
        transactions.commit({})
    if len(values(log)) == 1:
        transactions.recover()
        transactions.send([record(log, b"b", partition=2)])
        transactions.commit({})
    assert sorted(values(log)) == [b"a", b"b"]


@pytest.mark.parametrize("has_noticed", [False, True])
def test_a_member_that_the_group_has_given_up_cannot_commit(log: Backend, has_noticed: bool) -> None:
    source, transactions = log.join()
    transactions.send([record(log, b"a")])
    log.evict_all()
    reader = Reader(source)
    if has_noticed:
        reader.poll_until(lambda: reader.events_of_type(Lost))
    refusal(TransactionFailedError, transactions.commit, {0: Committed(1)})
    refusal(TransactionFailedError, transactions.send, [record(log, b"b")])  # until it has recovered
    assert source.committed() == {}
    reader.wait_for_assignment()
    transactions.recover()
    transactions.send([record(log, b"c")])
    transactions.commit({0: Committed(1)})
    assert values(log) == [b"c"]


@pytest.mark.parametrize("log", ON_BROKER[1:], indirect=True)
def test_a_full_queue_loses_nothing(log: OnConfluent, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka's; kafka-python waits by itself."""
    options = client.connection_options
    small = {"queue.buffering.max.messages": 5}
    monkeypatch.setattr(client, "connection_options", lambda settings: options(settings) | small)
    _, transactions = log.join()
    records = [record(log, b"%d" % i) for i in range(50)]
    transactions.send(records)
    transactions.commit({0: Committed(50)})
    assert values(log) == [sent.value for sent in records]
    monkeypatch.setattr(client, "_FULL_QUEUE_TIMEOUT_S", 0.1)
    with log.broker.frozen():
        assert "take no records" in refusal(TransactionFailedError, transactions.send, records)
    transactions.recover()
    transactions.send(records[:1])
    transactions.commit({})
    assert len(values(log)) == 51


@pytest.mark.parametrize("log", ON_BROKER[:1], indirect=True)
def test_a_record_that_was_not_delivered_fails_the_commit(log: OnKafka) -> None:
    """kafka-python's client would commit the others; librdkafka refuses to."""
    _, transactions = log.join()
    transactions.send([record(log, b"a")])
    late = Failure(KafkaTimeoutError("late"), log.output, size=0)
    transactions._failures.append(late)  # type: ignore[attr-defined]
    refusal(TransactionFailedError, transactions.commit, {0: Committed(1)})
    transactions.recover()
    assert values(log) == []


@on_broker
def test_a_producer_with_the_same_id_ends_the_open_transaction_of_another(
    log: Backend, capfd: pytest.CaptureFixture[str]
) -> None:
    """librdkafka writes what it says about that to our log, not to stderr."""
    _, before = log.join(group_instance_id="one")
    before.send([record(log, b"lost")])
    _, after = log.join(group_instance_id="one")
    after.send([record(log, b"kept")])
    after.commit({0: Committed(1)})
    refusal(TransactionFailedError, before.commit, {0: Committed(1)})
    before.abort()
    assert values(log) == [b"kept"]
    assert capfd.readouterr().err == ""


@on_broker
def test_a_membership_that_another_thread_loses_during_a_commit_is_read_once(
    log: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, transactions = log.join()
    transactions.send([record(log, b"a")])
    memberships = iter([source.membership])  # type: ignore[attr-defined]  # then it is lost
    lost = property(lambda self: next(memberships, None), lambda self, value: None)
    monkeypatch.setattr(type(source), "membership", lost, raising=False)
    transactions.commit({0: Committed(1)})
    assert source.committed()[0].offset == 1
    assert values(log) == [b"a"]


@pytest.mark.parametrize(
    ("refused", "codes", "size"),
    [({"value": bytes(99_909), "headers": [("é", b"h" * 16)]}, (10, 18), 100_001),
     ({"value": b"a", "timestamp": 2**50}, (32, 87), 0)],
)  # fmt: skip
@on_broker
def test_a_record_that_the_topic_does_not_take_is_refused(
    log: Backend, refused: Any, codes: tuple[int, ...], size: int
) -> None:
    """With its size, exactly: a byte less is taken. Only a second try may say which one of several was too large."""
    _, transactions = log.join()

    def write(*records: Outgoing) -> None:
        transactions.send([record(log, b"a"), *records])
        transactions.commit({0: Committed(1)})

    assert transactions.topic_configs()["max.message.bytes"] == "100000"  # also those that nobody has set
    assert transactions.topic_configs()["message.timestamp.type"] == "CreateTime"
    with pytest.raises(TransactionFailedError) as error:
        write(record(log, **refused))
    transactions.recover()
    if error.type is not RecordRefusedError:
        with pytest.raises(RecordRefusedError) as error:
            write(record(log, **refused))
        transactions.recover()
    assert error.match(f"topic {log.output}")
    assert error.value.code in codes
    assert error.value.size == size
    write(*([record(log, refused["value"][1:], headers=refused["headers"])] if size else []))


@on_broker
def test_a_record_without_a_key_in_a_compacted_topic_is_refused_once_and_the_key_is_blamed(log: OnKafka) -> None:
    compacted = log.broker.create_topic(f"{log.name}-compacted", 1, cleanup_policy="compact")
    source, _ = log.join()
    settings = log.settings(group_instance_id="compacted")
    with closing(create_transactions(settings, source, [compacted])) as transactions:
        transactions.recover()
        transactions.send([record(log, b"a", topic=compacted, key=key) for key in (b"k", None, b"k", None)])
        with pytest.raises(SourceError, match="without a key is refused by topic"):  # not RecordRefusedError
            transactions.commit({})
        transactions.recover()
        transactions.send([record(log, b"a", topic=compacted, key=b"k")])
        transactions.commit({})
    assert len(log.broker.read_all(compacted)) == 1


@on_broker
def test_the_options_of_a_topic_are_unknown_without_the_right(log: OnKafka) -> None:
    output = ResourcePattern(ResourceType.TOPIC, f"{log.name}-output")
    log.broker.admin.create_acls([ACL(f"User:{USER}", "*", ACLOperation.WRITE, ACLPermissionType.ALLOW, output)])
    login = {name.replace("_plain_", "_"): value for name, value in SASL.items()}
    _, transactions = log.join(**login, bootstrap_servers=log.broker.sasl_bootstrap)
    assert transactions.topic_configs() == {}


@on_broker
def test_a_topic_that_does_not_exist_is_reported_at_the_start(log: OnKafka) -> None:
    assert "there is no topic nowhere" in refusal(
        SourceError, create_transactions, log.settings(), log.open(), ["nowhere"]
    )
