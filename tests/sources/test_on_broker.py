"""Errors and outages of a real broker, for both clients, and workarounds for kafka-python."""

import base64
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import structlog
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kafka import TopicPartition
from kafka.errors import KafkaConnectionError, NodeNotReadyError
from kafka.net import manager

from streampca.errors import SettingsError, SourceError
from streampca.formats.record import Record
from streampca.settings.commands import WorkerSettings
from streampca.sources import client_source, standstill
from streampca.sources.base import DeadLetters
from streampca.sources.clients import create_dead_letters, would_brokers_accept_save
from streampca.sources.confluent import connection as confluent_connection, transactions as confluent_transactions
from streampca.sources.confluent.source import ConfluentSource
from streampca.sources.confluent.transactions import ConfluentProducer
from streampca.sources.events import Assigned, Records, Revoked
from streampca.sources.kafka_python import connection, patched_connections
from streampca.sources.kafka_python.client_internals import next_fetch_offset
from streampca.sources.kafka_python.patched_connections import PatchedConnectionManager
from streampca.sources.kafka_python.source import KafkaPythonSource
from tests.certificates import KEY_PASSWORD, Certificates
from tests.errors import refusal
from tests.kafka_broker import MECHANISMS, PASSWORD, USER, Broker
from tests.ports import free_ports
from tests.sources.backends import OnConfluent, OnKafka, settings_for
from tests.sources.reader import Reader, join_group, start_reading, values
from tests.waiting import PATIENCE_S, wait_until


def login(mechanism: str, **more: Any) -> dict[str, Any]:
    """Return the settings for a login by this mechanism."""
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism, "sasl_username": USER}
    return options | {"sasl_password": PASSWORD} | more


kafka_python = pytest.mark.parametrize("kind", [OnKafka], indirect=True)


@pytest.fixture
def logs_of_both_clients(stoppable: Broker, topic: str) -> Iterator[list[OnKafka]]:
    """Create a topic for each client. One test reads both, since starting the broker again takes six seconds."""
    with ExitStack() as opened:
        kinds = (OnKafka, OnConfluent)
        yield [opened.enter_context(closing(kind(stoppable, f"{topic}-{kind.client}", 2))) for kind in kinds]


def read_refusal(make: Any, settings: WorkerSettings) -> str:
    """Return the error that `make` raises, soon and without leaving a thread behind."""
    threads = threading.active_count()
    started = time.monotonic()
    text = refusal(SourceError, make, settings)
    assert time.monotonic() - started < PATIENCE_S
    wait_until(lambda: threading.active_count() <= threads, what="the end of the client's threads")
    return text


def read_no_answer_error(cause: str, make: Any, settings: WorkerSettings) -> str:
    """Let clients give up soon, and return their error. Try again until it has this cause: the machine may be busy."""
    with (
        mock.patch.multiple(connection, _FIRST_CONNECTION_S=2.0),
        mock.patch.multiple(confluent_connection, _START_S=2.0),
    ):
        text: str = wait_until(lambda: re.search(cause, text := read_refusal(make, settings)) and text, what=cause)
    assert "no broker answers" in text
    return text


@pytest.mark.parametrize("reachable", [False, True])
def test_a_broker_that_never_responds_is_an_error(
    broker: Broker, topic: str, kind: type[OnKafka], reachable: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1] if reachable else free_ports(1)[0]
        settings = settings_for(broker, topic, bootstrap_servers=f"127.0.0.1:{port}")
        text = read_no_answer_error("" if reachable else "ECONNREFUSED|Connection refused", kind.source, settings)
    assert f"no broker answers at 127.0.0.1:{port}" in text


def test_missing_topics_are_errors(broker: Broker, topic: str, kind: type[OnKafka]) -> None:
    text = read_refusal(kind.source, settings_for(broker, topic))
    assert f"there is no topic {topic} at {broker.bootstrap}" in text
    broker.create_topic(topic)
    text = read_refusal(
        create_dead_letters, settings_for(broker, topic, kafka_client=kind.client, dead_letter_topic=f"{topic}-dead")
    )
    assert f"there is no topic {topic}-dead" in text
    assert f"{topic}-dead" not in broker.admin.list_topics()


def test_a_new_client_could_save_if_brokers_answer_and_enough_replicas_are_in_sync(
    broker: Broker, new_topic: str, kind: type[OnKafka]
) -> None:
    dead = f"{new_topic}-dead"
    broker.create_topic(dead, min_insync_replicas=2)  # of one
    settings = settings_for(broker, new_topic, dead_letter_topic=dead, kafka_client=kind.client)
    waits = ("topic", "transaction", "dead letters")
    assert [would_brokers_accept_save(settings, waits_for) for waits_for in waits] == [True, True, False]
    absent = settings_for(broker, "t", bootstrap_servers=f"127.0.0.1:{free_ports(1)[0]}", kafka_client=kind.client)
    with mock.patch.object(connection, "_FIRST_CONNECTION_S", 1.0):
        assert not would_brokers_accept_save(absent, "topic")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_refused_and_the_right_one_joins(
    broker: Broker, new_topic: str, kind: type[OnKafka], mechanism: str
) -> None:
    options = login(mechanism, bootstrap_servers=broker.sasl_bootstrap)
    for make in (kind.source, create_dead_letters):
        wrong = settings_for(
            broker,
            new_topic,
            kafka_client=kind.client,
            **options | {"sasl_password": PASSWORD[::-1]},
            dead_letter_topic="dead",
        )
        text = read_refusal(make, wrong)
        assert "refuses the login" in text
        assert PASSWORD[::-1] not in text
    assert_joins_group(kind, settings_for(broker, new_topic, **options))


def assert_joins_group(kind: type[OnKafka], settings: WorkerSettings) -> None:
    with closing(kind.source(settings)) as source:
        assert Reader(source).wait_for_assignment() == {0}


def test_tls_trusts_only_brokers_of_the_given_authority(
    broker: Broker, new_topic: str, tmp_path: Path, kind: type[OnKafka]
) -> None:
    secure = login(MECHANISMS[-1], security_protocol="SASL_SSL", bootstrap_servers=broker.tls_bootstrap)
    assert_joins_group(kind, settings_for(broker, new_topic, **secure, ssl_cafile=broker.certificates.authority))
    wrong = settings_for(broker, new_topic, **secure, ssl_cafile=Certificates(tmp_path).make().authority)
    read_no_answer_error("(?i)certificate.verify.failed", kind.source, wrong)


def test_a_client_certificate_is_a_login(log: OnKafka) -> None:
    broker = log.broker
    kind = type(log)
    log.append(0, values(0, 10))
    secure = broker.certificate_login
    reader = start_reading(log.open(**secure), {0: None})
    reader.read_to({0: 10})
    assert reader.values(0) == values(0, 10)
    log.close()
    anonymous = {name: secure[name] for name in ("security_protocol", "bootstrap_servers", "ssl_cafile")}
    read_no_answer_error("ssl_certfile", kind.source, settings_for(broker, log.topic, **anonymous))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ssl_password": None}, "ssl_password must open the key"),
        ({"ssl_password": "not it"}, "ssl_password must open the key"),
        ({"ssl_keyfile": "server_key", "ssl_password": None}, "belong together"),
        ({"ssl_certfile": "client_key"}, "ssl_certfile"),
        ({"ssl_cafile": "client_key"}, "ssl_cafile"),
    ],
)
def test_unusable_certificates_are_refused_before_connecting(
    tmp_path: Path, kind: type[OnKafka], wrong: dict[str, str | None], words: str
) -> None:
    certificates = Certificates(tmp_path).make()
    options: dict[str, Any] = {
        "ssl_cafile": "authority", "ssl_certfile": "client", "ssl_keyfile": "client_key", "ssl_password": KEY_PASSWORD,
    } | wrong  # fmt: skip
    options |= {name: getattr(certificates, file) for name, file in options.items() if name.endswith("file")}
    settings = WorkerSettings(topic="t", dimensions=2, components=1, security_protocol="SSL", **options)
    text = refusal(SettingsError, kind.source, settings)
    assert words in text
    assert str(wrong.get("ssl_password") or KEY_PASSWORD) not in text


def test_options_refused_by_librdkafka_are_errors(broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    more = {"sasl.mechanism": "GSSAPI", "security.protocol": "SASL_PLAINTEXT"}
    options = confluent_connection.connection_options
    monkeypatch.setattr(confluent_connection, "connection_options", lambda s: options(s) | more)
    assert "does not take these settings" in read_refusal(ConfluentSource, settings_for(broker, topic))


def test_a_session_timeout_refused_by_the_broker_is_an_error(log: OnKafka) -> None:
    reader = Reader(log.open(session_timeout_s=0.5))
    assert "session_timeout_s" in refusal(SourceError, reader.wait_for_assignment)


def test_an_outage_is_survived_and_logged_once(stoppable: Broker, topic: str, kind: type[OnKafka]) -> None:
    """Afterwards kafka-python uses the certificates that were replaced meanwhile."""
    log = kind(stoppable, topic, 2)
    log.append(0, values(0, 1000))
    letters, acknowledged = log.open_dead_letters()
    reader = start_reading(log.open(100, **stoppable.certificate_login if kind is OnKafka else {}), {0: None, 1: None})
    reader.poll_until(lambda: reader.records(0))
    assert reader.source.status().connected
    stoppable.stop()
    with structlog.testing.capture_logs() as logged:
        letters.send(0, Record(7, b"bad", 1), "undecodable", "no")
        assert "1 dead letters are not acknowledged" in refusal(TimeoutError, letters.flush, 2.0)
        with mock.patch.object(manager, "create_connection", side_effect=ConnectionResetError):  # as by one that ends
            wait_until(lambda: have_logged("broker unreachable, waiting", reader, letters, logged))
        assert not reader.source.status().connected
        refusal(TimeoutError, reader.source.topic_id)
        started = time.monotonic()
        reader.source.commit({0: 5})
        assert time.monotonic() - started < PATIENCE_S / 4  # it does not wait for the broker
        stoppable.renew_certificates()
        stoppable.start()
        log.append(1, values(0, 10))
        for partition, end in ((0, 1000), (1, 10)):
            _read_on(reader, partition, end)
        letters.flush(PATIENCE_S)
        wait_until(lambda: have_logged("broker is back", reader, letters, logged))
        assert reader.source.status().connected
    assert all(line["cause"] for line in logged if line["event"] == "broker unreachable, waiting")
    assert reader.offsets(0) == list(range(1000))
    assert [record.value for record in acknowledged()] == [b"bad"]
    letters.close()
    log.close()


def have_logged(event: str, reader: Reader, letters: DeadLetters, logged: Sequence[Any]) -> bool:
    """Return whether the reader and the letters have both logged the event, each once."""
    reader.poll()
    with suppress(TimeoutError):
        letters.flush(0.1)
    count = [line["event"] for line in logged].count(event)
    assert count <= 2
    return count == 2


def test_an_open_transaction_is_why_a_partition_stands_still(
    stoppable: Broker, logs_of_both_clients: list[OnKafka], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standstill, "STANDSTILL_S", 0.5)
    readers = [start_reading(log.open(), {0: None}) for log in logs_of_both_clients]
    producer = Producer({"bootstrap.servers": stoppable.bootstrap, "transactional.id": "stuck"})
    producer.init_transactions(PATIENCE_S)
    for topic in (log.topic for log in logs_of_both_clients):
        producer.begin_transaction()
        producer.produce(topic, b"x", partition=0)
        producer.flush(PATIENCE_S)
        reader = readers.pop(0)
        began = time.time()
        reader.poll_until(lambda reader=reader: reader.source.status().blocked_since)
        assert began - 10 < reader.source.status().blocked_since < time.time()
        producer.abort_transaction(PATIENCE_S)
        reader.poll_until(lambda reader=reader: reader.source.status().blocked_since is None)


def test_a_broker_that_hangs_is_not_connected(
    stoppable: Broker, logs_of_both_clients: list[OnKafka], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections stay open, but nothing comes over them."""
    silence_s = 6.0
    monkeypatch.setattr(connection, "_REQUEST_TIMEOUT_S", silence_s)
    monkeypatch.setattr(confluent_connection, "_BACKGROUND_TIMEOUT_S", silence_s)
    readers = [start_reading(log.open(), {0: None}) for log in logs_of_both_clients]
    quiet = time.monotonic() + silence_s + 1  # nothing is produced, but brokers answer the client's requests
    while time.monotonic() < quiet:
        for reader in readers:
            reader.poll()
            assert reader.source.status().connected
    with stoppable.frozen():
        for reader in readers:
            reader.poll_until(lambda r=reader: not r.source.status().connected)  # type: ignore[misc]
    for reader in readers:
        reader.poll_until(lambda r=reader: r.source.status().connected)  # type: ignore[misc]


def test_a_letter_that_meets_a_full_queue_waits_for_room(
    stoppable: Broker, new_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confluent_transactions, "_QUEUE_KIB", 1)
    settings = settings_for(stoppable, "t", dead_letter_topic=new_topic)

    def send(values: Sequence[bytes]) -> None:
        for value in values:
            letters.send(0, Record(7, value, 1), "undecodable", "no")

    sent = [b"%300d" % i for i in range(50)]
    with closing(ConfluentProducer(settings, new_topic, 0.2, is_idempotent=False)) as letters:
        send(sent)
        letters.flush(PATIENCE_S)
        with stoppable.frozen():
            assert "no broker answers" in refusal(SourceError, send, sent)
    assert [record.value for record in stoppable.read_all(new_topic)][:50] == sent


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_a_letter_larger_than_the_queue_gets_a_larger_queue(
    broker: Broker, new_topic: str, monkeypatch: pytest.MonkeyPatch, is_idempotent: bool
) -> None:
    """The letters before are not sent again, and those after it find the larger queue."""
    monkeypatch.setattr(confluent_transactions, "_QUEUE_KIB", 1)
    settings = settings_for(broker, "t", dead_letter_topic=new_topic)
    sent = [b"%*d" % (size, size) for size in (300, 1024, 1025, 5000, 300, 5001, 5000, 40_000)]
    with closing(ConfluentProducer(settings, new_topic, PATIENCE_S, is_idempotent=is_idempotent)) as letters:
        for value in sent:
            letters.produce(value)
        letters.flush(PATIENCE_S)
    assert [record.value for record in broker.read_all(new_topic)] == sent


def test_a_full_queue_is_not_said_to_be_without_brokers_while_one_answers(broker: Broker, new_topic: str) -> None:
    """Here the producer knows only an address at which nobody listens, so its records are not acknowledged."""
    lost = {"bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}", "queue.buffering.max.kbytes": 1}
    with closing(ConfluentProducer(settings_for(broker, "t"), new_topic, 0.2, is_idempotent=False)) as letters:
        letters._producer = Producer(lost)
        letters.produce(b"%600d" % 1)
        text = refusal(SourceError, letters.produce, b"%600d" % 2)
    assert "no broker answers" not in text
    assert f"topic {new_topic}" in text
    assert "min.insync.replicas" in text


@pytest.mark.parametrize("keeps_coordinator", [False, True])
def test_a_client_of_kafka_python_that_has_lost_all_brokers_asks_the_bootstrap_servers(
    broker: Broker, new_topic: str, monkeypatch: pytest.MonkeyPatch, keeps_coordinator: bool
) -> None:
    """Here it knows only an address at which nobody listens, as after all brokers have changed address."""
    monkeypatch.setattr(patched_connections, "_LOST_AFTER_S", 1.0)
    log = OnKafka(broker, new_topic, 1)
    letters, acknowledged = log.open_dead_letters()
    reader = start_reading(log.open(), {0: None})
    for client in (letters, reader.source):
        lose_brokers(client._connection._manager, keeps_coordinator=keeps_coordinator)  # type: ignore[attr-defined]
    log.append(0, values(0, 10))
    letters.send(0, Record(7, b"bad", 1), "undecodable", "no")
    _read_on(reader, 0, 10)
    letters.flush(PATIENCE_S)
    assert reader.source.status().connected
    assert [record.value for record in acknowledged()] == [b"bad"]
    letters.close()
    log.close()


def lose_brokers(manager: PatchedConnectionManager, *, keeps_coordinator: bool) -> None:
    """Let a client know all brokers at an address where nobody listens, and end its connections to them."""
    (dead_port,) = free_ports(1)
    cluster = manager.cluster
    for known in [cluster._brokers] if keeps_coordinator else [cluster._brokers, cluster._coordinator_brokers]:
        for node_id, node in known.items():
            node.port = dead_port
            if conn := manager._conns.get(node_id):
                manager.call_soon(conn.close, KafkaConnectionError("the test says so"))


def test_clients_of_librdkafka_that_have_lost_all_brokers_are_replaced(
    broker: Broker, new_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They never ask the bootstrap servers again; here they know only an address at which nobody listens."""
    monkeypatch.setattr(confluent_connection, "REPLACE_CLIENT_AFTER_S", 1.0)  # of the admin client
    monkeypatch.setattr(confluent_transactions, "REPLACE_CLIENT_AFTER_S", 1.0)  # of the producer
    lost = {"bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}"}
    dead = broker.create_topic(f"{new_topic}-dead")
    settings = settings_for(broker, new_topic, dead_letter_topic=dead)
    source = ConfluentSource(settings)
    letters = ConfluentProducer(settings, dead, is_idempotent=False)
    sent = [b"%d" % i for i in range(3)]
    with closing(source), closing(letters):
        letters._producer.purge()
        letters._producer = Producer(lost)
        for value in sent:
            letters.send(0, Record(7, value, 1), "undecodable", "no")
        for connection in (letters._connection, source._connection):
            connection._admin = AdminClient(lost)

        def answered() -> bool:
            reader.poll()
            with suppress(TimeoutError):
                letters.flush(0.1)
                return bool(source.topic_id())
            return False

        reader = Reader(source)
        wait_until(answered)
        assert source.status().connected
    assert [record.value for record in broker.read_all(dead)] == sent


def _read_on(reader: Reader, partition: int, end: int) -> None:
    """Read to the end, even if the group rebalances in between."""

    def reached() -> bool:
        for event in reader.poll():
            if isinstance(event, Assigned):
                reader.source.seek({p: reader.next_position(p) for p in event.partitions})
        return reader.next_position(partition) == end

    wait_until(reached, what=f"the end of {partition}; {reader.events[-5:]}")


def test_close_is_quick_during_an_outage(stoppable: Broker, logs_of_both_clients: list[OnKafka]) -> None:
    letters = [log.open_dead_letters()[0] for log in logs_of_both_clients]
    readers = [join_group(log.open()) for log in logs_of_both_clients]
    with stoppable.frozen():  # a broker that has ended resets connections, and nobody waits
        for sink in letters:
            sink.send(0, Record(7, b"bad", 1), "undecodable", "no")
        for close in (*(sink.close for sink in letters), *(reader.source.close for reader in readers)):
            started = time.monotonic()
            close()
            close()
            assert time.monotonic() - started < PATIENCE_S / 4  # it does not wait for the broker


@kafka_python
def test_records_fetched_by_a_failed_poll_arrive_again(log: OnKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python moves its position before it sends the next request, which can fail."""
    log.append(0, values(0, 100))
    reader = start_reading(log.open(poll_records=10), {0: None})
    reader.poll_until(lambda: len(reader.records(0)) >= 20)
    consumer = reader.source._consumer  # type: ignore[attr-defined]
    failed_at = list[int]()

    def fail() -> None:
        failed_at.append(next_fetch_offset(consumer, TopicPartition(log.name, 0)) or 0)
        monkeypatch.undo()
        raise KafkaConnectionError("as if the connection was lost")

    monkeypatch.setattr(consumer._fetcher, "send_fetches", fail)
    reader.read_to({0: 100})
    assert [position > 20 for position in failed_at] == [True]
    assert reader.offsets(0) == list(range(100))


@kafka_python
def test_a_poll_holds_a_few_partitions_worth_of_large_records(broker: Broker, topic: str, kind: type[OnKafka]) -> None:
    """However many partitions have records of 1 MB: a poll's records are held several times."""
    partitions = range(15)
    with closing(kind(broker, topic, len(partitions))) as log:
        for partition in partitions:
            log.append(partition, [bytes(1_000_000)] * 4)
        reader = start_reading(log.open(), dict.fromkeys(partitions, 0))
        sizes = list[int]()

        def all_are_read() -> bool:
            sizes.append(sum(event.nbytes for event in reader.poll() if isinstance(event, Records)))
            return all(reader.next_position(partition) == 4 for partition in partitions)

        wait_until(all_are_read)
    # kafka-python sends the next request before the last answer's records are taken: a poll may hold two answers.
    assert max(sizes) <= 2 * client_source.FETCH_BYTES_OF_ALL


@kafka_python
def test_a_broker_that_has_left_the_metadata_is_asked_later(log: OnKafka) -> None:
    """The leader of a partition can leave before a request is sent to it."""
    reader = join_group(log.open())
    with pytest.raises(NodeNotReadyError) as raised:
        reader.source._consumer._client._manager.get_connection(4711)  # type: ignore[attr-defined]
    assert raised.value.retriable


@kafka_python
def test_a_rebalance_that_outlasts_the_poll_is_completed(log: OnKafka) -> None:
    """kafka-python forgets a rebalance caused by new partitions if its poll ends before the group responds."""
    reader = join_group(log.open())
    log.add_partitions(2)
    deadline = time.monotonic() + PATIENCE_S
    while len(reader.events_of_type(Assigned)) < 2:  # polls too short for an answer
        reader.poll(0.001)
        assert time.monotonic() < deadline, reader.events
    assert reader.events_of_type(Assigned)[-1].partitions == {0, 1}
    assert len(reader.events_of_type(Revoked)) == 1


def test_a_letter_too_large_for_its_topic_is_an_error_and_smaller_letters_arrive(log: OnKafka) -> None:
    dead = log.broker.create_topic(f"{log.name}-small", max_message_bytes=1000)
    letters = create_dead_letters(log.settings(dead_letter_topic=dead))
    for offset in range(20):  # each is within the limit, the whole batch is not
        letters.send(0, Record(offset, b"x" * 300, 1), "undecodable", "no")
    letters.flush(PATIENCE_S)
    letters.send(0, Record(20, b"x" * 1000, 1), "undecodable", "no")
    assert f"raise max.message.bytes of {dead}" in refusal(SourceError, letters.flush, PATIENCE_S)
    letters.close()
    received = log.broker.read_all(dead)
    assert sorted(int(dict(r.headers)["__connect.errors.offset"]) for r in received) == list(range(20))


def test_a_letter_without_a_key_that_a_compacted_topic_refuses_is_explained_by_its_key(log: OnKafka) -> None:
    dead = log.broker.create_topic(f"{log.name}-compacted", cleanup_policy="compact")
    with closing(create_dead_letters(log.settings(dead_letter_topic=dead))) as letters:
        letters.send(0, Record(0, b"x", 1, key=b"k"), "undecodable", "no")
        letters.flush(PATIENCE_S)
        letters.send(0, Record(1, b"x", 1), "undecodable", "no")
        assert f"a record without a key is refused by topic {dead}" in refusal(SourceError, letters.flush, PATIENCE_S)


def test_letters_arrive_although_the_clock_is_wrong(
    log: OnKafka, logs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it were behind: brokers refuse all before their time, and producers take theirs 50 ms before they send."""
    python = connection.connection_options
    confluent = confluent_transactions.connection_options
    monkeypatch.setattr(connection, "connection_options", lambda s: python(s) | {"linger_ms": 50})
    monkeypatch.setattr(confluent_transactions, "connection_options", lambda s: confluent(s) | {"linger.ms": 50})
    dead = log.broker.create_topic(f"{log.name}-strict", message_timestamp_before_max_ms=0)
    time_ms = int(time.time() * 1000) + 30 * 60_000
    sent = [b"%d" % i for i in range(20)]
    with closing(create_dead_letters(log.settings(dead_letter_topic=dead))) as letters:
        for offset, value in enumerate(sent):
            letters.send(0, Record(offset, value, time_ms), "undecodable", "no")
        letters.flush(PATIENCE_S)
        letters.send(0, Record(20, b"unknown time", -1), "undecodable", "no")
        assert "imestamp" in refusal(SourceError, letters.flush, PATIENCE_S)
    received = log.broker.read_all(dead)
    assert {record.value: record.timestamp for record in received} == dict.fromkeys(sent, time_ms)
    assert [line["event"] for line in logs].count("clock differs from brokers, dead letters keep records' times") == 1


def test_a_deleted_dead_letter_topic_is_an_error_and_is_not_created_again(log: OnKafka) -> None:
    dead = log.broker.create_topic(f"{log.name}-dead")
    letters = create_dead_letters(log.settings(dead_letter_topic=dead))
    log.broker.delete_topic(dead)
    letters.send(0, Record(0, b"x", 1), "undecodable", "no")

    def is_flushed() -> bool:
        with suppress(TimeoutError):  # the broker's answer may be late
            letters.flush(1)
            return True
        return False

    assert f"there is no topic {dead}" in refusal(SourceError, wait_until, is_flushed)
    letters.close()
    assert dead not in log.broker.admin.list_topics()


def test_the_topic_id_is_the_one_that_kafkas_tools_print(log: OnKafka) -> None:
    (described,) = log.broker.admin.describe_topics([log.name])
    identity = log.open().topic_id()
    assert len(identity) == 22
    assert uuid.UUID(described["topic_id"]).bytes == base64.urlsafe_b64decode(identity + "==")


@pytest.mark.usefixtures("long_timeouts")
def test_each_client_reads_the_metadata_that_the_other_commits(broker: Broker, new_topic: str) -> None:
    """librdkafka ends them with a zero, and reads what has none beyond its end."""
    kinds = (KafkaPythonSource, ConfluentSource)
    for kind in kinds:
        member = join_group(kind(settings_for(broker, new_topic))).source
        others = [other(settings_for(broker, new_topic)) for other in kinds]
        for length in (1, 7, 8, 15, 16, 63, 64, 200):
            member.commit({0: length}, "é" * length)
            for other in others:
                wait_until(lambda o=other, n=length: o.committed().get(0, (-1,))[0] == n, what=f"offset {length}")  # type: ignore[misc]
                for _ in range(20):  # bytes beyond the metadata's end would differ between readings
                    assert other.committed() == {0: (length, "é" * length)}
        for source in (member, *others):
            source.close()
