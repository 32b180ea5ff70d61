"""How librdkafka is configured and which of its errors are final; without a broker."""

import base64
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, Self

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    KafkaException,
    Message,
    Uuid,
)

from streampca.errors import NoBrokerError, SourceError
from streampca.formats.record import headers_of, timestamps_of, values_of
from streampca.settings.commands import WorkerSettings
from streampca.sources.base import TopicDescription
from streampca.sources.broker_errors import BrokerErrors, TopicError
from streampca.sources.confluent import connection, transactions
from streampca.sources.confluent.admin import ConfluentAdmin
from streampca.sources.confluent.batch import ConfluentBatch
from streampca.sources.confluent.client_errors import is_permanent, protocol_code
from streampca.sources.confluent.connection import format_topic_id
from tests.errors import refusal
from tests.waiting import Clock

SILENT_S = 15.0
SETTINGS = WorkerSettings(topic="t", dimensions=3, components=1, kafka_client="confluent")


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "does not allow this user"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "does not allow this user"),
        (KafkaError.INVALID_SESSION_TIMEOUT, "refuses session_timeout_s"),
        (KafkaError._AUTHENTICATION, "refuses the login"),
        (KafkaError.TOPIC_EXCEPTION, "there is no topic t at"),
        (KafkaError._BAD_MSG, "Bad message format"),  # librdkafka would skip it
        (KafkaError._ALL_BROKERS_DOWN, None),
        (KafkaError._MAX_POLL_EXCEEDED, None),
        (KafkaError.NOT_LEADER_FOR_PARTITION, None),
        (KafkaError.UNKNOWN_MEMBER_ID, None),
        (KafkaError.REBALANCE_IN_PROGRESS, None),
    ],
)
def test_final_errors_are_explained_and_only_these_are_final(code: int, sentence: str | None) -> None:
    error = KafkaError(code)
    assert is_permanent(error) is (sentence is not None)
    if sentence is not None:
        assert sentence in str(BrokerErrors(SETTINGS, "t").explain(protocol_code(error), error.str()))


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE])
def test_a_login_that_the_broker_does_not_answer_is_not_final(code: int) -> None:
    text = f"SASL PLAIN mechanism handshake failed: {KafkaError(code).str()}: (n/a)"
    assert not is_permanent(KafkaError(KafkaError._AUTHENTICATION, text))


@pytest.mark.parametrize("high", [0, 1, -1, -4, 2**63 - 1, -(2**60) - 5])
def test_topic_ids_are_formatted_as_by_kafkas_tools(high: int) -> None:
    raw = (high % 2**64).to_bytes(8, "big") + (5).to_bytes(8, "big")
    assert format_topic_id(Uuid(high, 5)) == base64.urlsafe_b64encode(raw).decode().rstrip("=")
    assert format_topic_id(Uuid(0, 0)) == ""  # there is none


class MessageWithoutHeaders(Message):
    """A message with a header whose name is not UTF-8."""

    def headers(self) -> Any:
        return b"\xff".decode()


def test_a_batch_has_records_and_columns() -> None:
    batch = ConfluentBatch(
        [
            Message(offset=5, value=b"5", timestamp=(TIMESTAMP_CREATE_TIME, 17)),
            Message(offset=9, value=b"9", timestamp=(TIMESTAMP_NOT_AVAILABLE, 0)),
        ]
    )
    assert [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in batch] == [
        (5, 17, None, b"5", []), (9, -1, None, b"9", []),
    ]  # fmt: skip
    assert values_of(batch) == [b"5", b"9"]
    assert timestamps_of(batch) == [17, -1]
    assert [r.offset for r in batch[1:]] == [9]


def test_headers_whose_names_are_not_utf8_are_replaced_by_one_that_says_so() -> None:
    batch = ConfluentBatch([MessageWithoutHeaders(offset=5)])
    assert headers_of(batch) == [batch[0].headers]
    assert [name for name, _ in batch[0].headers] == ["__connect.errors.headers"]


class UnansweredProducer:
    """Takes records, and acknowledges them when a test says so."""

    def __init__(self, options: Any) -> None:
        self.records: list[tuple[bytes, Any]] = []  # values, and what hears that they are acknowledged

    def produce(self, topic: str, value: bytes, key: bytes, partition: int, report: Any, *others: Any) -> None:
        self.records.append((value, report))

    def acknowledge(self) -> None:
        _, report = self.records.pop(0)
        report(None, None)

    def poll(self, timeout_s: float) -> None:
        pass

    def purge(self) -> None:
        self.records.clear()


class ConnectedTo:
    """A connection to brokers that answer, with which a client is silent after 15 s."""

    connected = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def start(self) -> Self:
        return self

    def topic_configs(self) -> dict[str, str]:
        return {}

    def should_replace(self, answered_at: float, silent_s: float) -> bool:
        return self._clock.now - answered_at > silent_s


def test_a_silence_begins_with_the_last_answer_or_the_oldest_letter_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An hour without letters is no silence; a replaced producer sends again what is not acknowledged."""
    clock = Clock(1000.0)
    producers = list[UnansweredProducer]()

    def create(kind: Any, options: Any) -> UnansweredProducer:
        producers.append(UnansweredProducer(options))
        return producers[-1]

    monkeypatch.setattr(transactions, "ConfluentConnection", lambda settings, topic: ConnectedTo(clock))
    monkeypatch.setattr(transactions, "create", create)
    monkeypatch.setattr(transactions.time, "monotonic", clock)
    letters = transactions.ConfluentProducer(SETTINGS, "dead", is_idempotent=False)

    def replaced_after(seconds: float) -> bool:
        before = len(producers)
        clock.now += seconds
        letters.raise_refused()
        return len(producers) > before

    assert not replaced_after(3600.0)
    letters.produce(b"first")
    assert not replaced_after(SILENT_S - 1)
    letters.produce(b"second")  # does not begin the time anew
    assert replaced_after(2.0)
    assert [value for value, _ in producers[-1].records] == [b"first", b"second"]
    assert not replaced_after(2 * SILENT_S - 1)
    producers[-1].acknowledge()
    assert not replaced_after(0.0)
    producers[-1].acknowledge()
    assert not replaced_after(3600.0)
    letters.produce(b"third")
    assert not replaced_after(SILENT_S)
    assert replaced_after(0.1)
    # The letter may take longer to send than the silence lasted, so each attempt gets twice the time of the one before.
    assert not replaced_after(2 * SILENT_S - 1)
    assert replaced_after(2.0)
    assert not replaced_after(4 * SILENT_S - 1)
    producers[-1].acknowledge()
    assert not replaced_after(3600.0)
    letters.produce(b"fourth")
    assert replaced_after(SILENT_S + 1)


class AdminWithUnansweredLeader:
    """An admin client as librdkafka's if the leader of a partition does not answer: its offset is invalid."""

    def __init__(self, options: Any) -> None:
        pass

    def list_offsets(self, requests: Any, request_timeout: float) -> dict[Any, Future[Any]]:
        futures = {tp: Future[Any]() for tp in requests}
        for tp, future in futures.items():
            future.set_result(SimpleNamespace(offset=OFFSET_INVALID if tp.partition == 1 else 0))
        return futures


def test_the_log_bounds_of_a_partition_whose_leader_does_not_answer_are_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "create", lambda kind, options: AdminWithUnansweredLeader(options))
    asking = ConfluentAdmin(SETTINGS, "t")
    monkeypatch.setattr(asking, "require_topic", lambda: TopicDescription("id", {0: 1, 1: 1}))
    assert "the leader of partition 1 does not answer" in refusal(NoBrokerError, asking.log_bounds)


@pytest.mark.parametrize(
    ("code", "may_a_later_request_succeed"),
    [
        (KafkaError._TIMED_OUT, True),
        (KafkaError._NOENT, True),  # no leaders were found
        (KafkaError.NOT_LEADER_FOR_PARTITION, True),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, False),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False),
    ],
)
def test_a_failed_request_says_whether_a_later_one_may_succeed(
    monkeypatch: pytest.MonkeyPatch, code: int, may_a_later_request_succeed: bool
) -> None:
    monkeypatch.setattr(connection, "create", lambda kind, options: AdminWithUnansweredLeader(options))
    request = Future[Any]()
    request.set_exception(KafkaException(KafkaError(code)))
    with pytest.raises(SourceError) as raised:
        ConfluentAdmin(SETTINGS, "t")._require_answer(request)
    assert isinstance(raised.value, NoBrokerError) is may_a_later_request_succeed


class AdminWithoutController:
    """An admin client whose controller cannot be reached; other brokers answer if a test says so."""

    are_others_answering = False

    def __init__(self, options: Any) -> None:
        pass

    def describe_topics(self, topics: Any, **options: Any) -> dict[str, Future[Any]]:
        request = Future[Any]()
        request.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        return {"t": request}

    def list_topics(self, topic: str, timeout: float) -> None:
        if not self.are_others_answering:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def poll(self, timeout_s: float) -> None:
        pass


@pytest.mark.parametrize("are_others_answering", [False, True])
def test_no_broker_is_said_to_answer_only_if_none_does(
    monkeypatch: pytest.MonkeyPatch, are_others_answering: bool
) -> None:
    monkeypatch.setattr(AdminWithoutController, "are_others_answering", are_others_answering)
    monkeypatch.setattr(connection, "create", lambda kind, options: AdminWithoutController(options))
    asking = connection.ConfluentConnection(SETTINGS, "t")
    for kind, ask in ((NoBrokerError, asking.require_topic), (TimeoutError, asking.describe)):
        text = refusal(kind, ask, 0.2)
        assert ("no broker answers" in text) is not are_others_answering
        assert ("a broker cannot be reached" in text) is are_others_answering


NO_TOPIC, NO_ANSWER = TopicError("there is no topic t"), TimeoutError("no answer")


@pytest.mark.parametrize(
    ("first", "then", "kind"),
    [(NO_TOPIC, NO_TOPIC, TopicError), (NO_ANSWER, NO_TOPIC, TopicError), (NO_TOPIC, NO_ANSWER, NoBrokerError)],
)
def test_the_newest_answer_tells_a_missing_topic_from_an_outage_also_if_both_times_are_over(
    monkeypatch: pytest.MonkeyPatch, first: Exception, then: Exception, kind: type[SourceError]
) -> None:
    asking = connection.ConfluentConnection(SETTINGS, "t")
    errors = iter([first])

    def ask(timeout_s: float) -> TopicDescription:
        raise next(errors, then)

    monkeypatch.setattr(asking, "_ask_for_topic", ask)
    with pytest.raises(SourceError) as caught:
        asking.require_topic(0.3, 0.3)
    assert type(caught.value) is kind
