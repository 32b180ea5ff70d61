"""Creates the clients that the settings name, and what uses them."""

import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple

from streampca.errors import StreampcaError
from streampca.settings.commands import ConsumerSettings, DeadLettersSettings, ProduceSettings
from streampca.settings.kafka import KafkaSettings
from streampca.sources import base
from streampca.sources.base import Admin, DeadLetters, OutgoingFields, RecordRefusedError, Source, Transactions
from streampca.sources.client_connection import BrokerErrors
from streampca.sources.client_transactions import ClientProducer, ClientTransactions
from streampca.sources.record_times import RecordTimes
from streampca.sources.topic_reader import TopicReader

_REPLAY_S = 60.0  # a person waits; brokers abort the transaction of a killed replay after this time


class _Client(NamedTuple):
    """The classes of one client."""

    admin: Callable[[KafkaSettings, str], Admin]
    source: Callable[[ConsumerSettings], Source]
    producer: Callable[..., ClientProducer]
    transactions: Callable[..., ClientTransactions]


class ReplayProducer:
    """Sends dead letters' records again, in transactions. Opening one ends those of any other with the same name.

    All methods raise as `Transactions`; then nothing of the transaction is visible to readers of committed records,
    unless `send` was in its end: then all of it may be.
    """

    def __init__(self, topic: str, transactions: ClientTransactions) -> None:
        self._transactions, self.close = transactions, transactions.close
        transactions.begin_s, transactions.commit_s = _REPLAY_S / 2, _REPLAY_S
        self._times, self.replaced = RecordTimes(topic, transactions), 0  # records with the time of sending, so far
        transactions.recover()
        self.partitions = transactions.partitions(topic)

    def send(self, records: Iterable[OutgoingFields]) -> None:
        """Send records as one transaction, and return when it is committed."""
        records = list(records)
        while True:
            sendable, replaced = self._times.sendable(records)
            try:
                self._transactions.send(sendable)
                self._transactions.commit({})
                break
            except RecordRefusedError as error:
                self._times.retry(error)
                self._transactions.recover()
        self._times.tries = 0
        self.replaced += replaced


def client_and_other(settings: KafkaSettings) -> str:
    """The client in use, and what the other would do."""
    if settings.client == "confluent":
        return "confluent; kafka-python (kafka_client=kafka-python) is several times slower"
    return "kafka-python; confluent (kafka_client=confluent) is several times as fast"


def _client(settings: KafkaSettings) -> _Client:
    """The client in use. The other one is not imported: kafka-python comes with patches."""
    if settings.client == "confluent":
        from streampca.sources.confluent.admin import ConfluentAdmin
        from streampca.sources.confluent.source import ConfluentSource
        from streampca.sources.confluent.transactions import ConfluentProducer, ConfluentTransactions

        return _Client(ConfluentAdmin, ConfluentSource, ConfluentProducer, ConfluentTransactions)
    from streampca.sources.kafka_python.connection import KafkaPythonAdmin
    from streampca.sources.kafka_python.source import KafkaPythonSource
    from streampca.sources.kafka_python.transactions import KafkaPythonProducer, KafkaPythonTransactions

    return _Client(KafkaPythonAdmin, KafkaPythonSource, KafkaPythonProducer, KafkaPythonTransactions)


def create_admin(settings: KafkaSettings, topic: str) -> Admin:
    """An admin client for a topic, which need not exist. Raises `SourceError`."""
    return _client(settings).admin(settings, topic)


def require_writable(settings: KafkaSettings, topic: str) -> int:
    """The number of partitions of a topic. Raises `SourceError` unless it exists and may be written to."""
    with closing(create_admin(settings, topic)) as admin:
        description = admin.require_topic()
    if not description.is_writable:
        raise BrokerErrors(settings, topic).not_authorized(f"writing to topic {topic}")
    return len(description.in_sync)


def create_client(settings: ConsumerSettings) -> Source:
    """A member of the consumer group, which joins at its first poll. Raises `SourceError`."""
    return _client(settings).source(settings)


def could_save(settings: ConsumerSettings, needs: str) -> bool:
    """Return whether a new client is answered, and what a save `needs` has the leaders and replicas for writing."""
    topic = (needs == "dead letters" and settings.dead_letter_topic) or settings.topic
    with suppress(StreampcaError), closing(create_admin(settings, topic)) as admin:
        in_sync = admin.require_topic().in_sync.values()
        return min(in_sync) >= int(admin.topic_configs().get("min.insync.replicas", 1))
    return False


def open_reader(settings: KafkaSettings, topic: str) -> TopicReader:
    """A reader of the committed records of a topic. Raises `SourceError`."""
    with closing(create_admin(settings, topic)) as admin:
        log_ends = admin.log_ends()
    outside_of_groups = {"topic": topic, "group_instance_id": None}
    alone = ConsumerSettings.model_construct(**dict(settings) | outside_of_groups)
    return TopicReader(create_client(alone), topic, log_ends)


def create_producer(settings: ProduceSettings) -> ClientProducer:
    """A producer for the topic, which writes each record once. Raises `SourceError`."""
    return _client(settings).producer(settings, settings.topic, 60.0, is_idempotent=True)


def create_dead_letters(settings: ConsumerSettings) -> DeadLetters:
    """Create the writer of dead letters; without a dead-letter topic, one that is never used. Raises `SourceError`."""
    if settings.dead_letter_topic is None:
        return DeadLetters()
    return _client(settings).producer(settings, settings.dead_letter_topic, is_idempotent=False)


def create_transactions(settings: ConsumerSettings, source: Any, topics: Sequence[str]) -> Transactions:
    """Transactions of a source that `create_client` has created with the same settings. Raises `SourceError`."""
    name = f"{settings.group}-{settings.group_instance_id or uuid.uuid4().hex}"
    return _client(settings).transactions(settings, topics, name, settings.session_timeout_s, source)


def create_replay(settings: DeadLettersSettings) -> ReplayProducer:
    """Sends records to their topic again; ends any other replay of the dead-letter topic. Raises `SourceError`."""
    topics, name = [settings.topic, settings.dead_letter_topic], f"streampca-replay-{settings.dead_letter_topic}"
    return ReplayProducer(settings.topic, _client(settings).transactions(settings, topics, name, _REPLAY_S))


def in_flight_limit_bytes(settings: ConsumerSettings) -> int:
    """Bytes of records and vectors that a member may have in flight."""
    if settings.client == "confluent":  # librdkafka's own queue holds the other half
        return base.IN_FLIGHT_MIB * 2**20 // 2
    return base.IN_FLIGHT_MIB * 2**20
