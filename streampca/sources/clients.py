"""Creates readers and writers of topics, with the Kafka client that the settings name."""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple

from streampca.errors import SourceError, StreampcaError
from streampca.settings.commands import ConsumerSettings, DeadLettersSettings, ProduceSettings
from streampca.settings.kafka import KafkaSettings
from streampca.sources import base
from streampca.sources.base import (
    Admin,
    DeadLetters,
    NoDeadLetters,
    OutgoingFields,
    RecordRefusedError,
    Source,
    Transactions,
)
from streampca.sources.broker_errors import BrokerErrors
from streampca.sources.client_producer import ClientProducer
from streampca.sources.client_transactions import ClientTransactions
from streampca.sources.record_times import TimestampReplacer
from streampca.sources.topic_options import CLEANUP_POLICY, is_compacted
from streampca.sources.topic_reader import TopicReader

# A person waits for a replay, so it may wait longer for brokers than a member does. If a replay is killed, the brokers
# abort its transaction after this time.
_REPLAY_TIMEOUT_S = 60.0
_PRODUCE_FULL_QUEUE_TIMEOUT_S = 60.0  # how long a record of `streampca produce` waits for room in a full queue


class _ClientClasses(NamedTuple):
    """The classes that use one client."""

    admin: Callable[[KafkaSettings, str], Admin]
    source: Callable[[ConsumerSettings], Source]
    producer: Callable[..., ClientProducer]
    transactions: Callable[..., ClientTransactions]


class ReplayProducer:
    """Sends the records of dead letters again, in transactions.

    When it is created, the brokers end the open transaction of any other producer with the same transactional id.
    Methods raise what the methods of `Transactions` raise. Readers of committed records then see nothing of the
    transaction; but if `send` failed while it was committing, they may see all of it.
    """

    def __init__(self, topic: str, transactions: ClientTransactions) -> None:
        """Create a producer that sends rejected records to `topic` again."""
        transactions.recover()  # ends the transaction that another replay has left open
        self._transactions = transactions
        # Timestamps that the topic does not keep are replaced by the time of sending.
        self._timestamps = TimestampReplacer(topic, transactions)
        self.replaced_timestamps = 0  # how many, in all committed transactions
        self.partition_count = transactions.partitions(topic)

    def send(self, records: Iterable[OutgoingFields]) -> None:
        """Send records in one transaction, and return when it is committed.

        If a timestamp is refused, the next try replaces more timestamps.
        """
        records = list(records)
        while True:
            sendable, replaced = self._timestamps.replace(records)
            try:
                self._transactions.send(sendable)
                self._transactions.commit({})  # a replay has no offsets
                break
            except RecordRefusedError as error:
                self._timestamps.begin_next_try(error)  # raises if another try does not help
                self._transactions.recover()
        self._timestamps.forget_failed_tries()  # the next records again begin with the first try
        self.replaced_timestamps += replaced

    def close(self) -> None:
        """Abort the open transaction, and close the connections."""
        self._transactions.close()


def describe_client(settings: KafkaSettings) -> str:
    """Return the name of the client in use, and how much faster or slower the other client is, for the log."""
    if settings.client == "confluent":
        return "confluent; kafka-python (kafka_client=kafka-python) is several times slower"
    return "kafka-python; confluent (kafka_client=confluent) is several times as fast"


def _client_classes(settings: KafkaSettings) -> _ClientClasses:
    """Import and return the classes for the client in use. Importing those for kafka-python patches that client."""
    if settings.client == "confluent":
        from streampca.sources.confluent.admin import ConfluentAdmin
        from streampca.sources.confluent.source import ConfluentSource
        from streampca.sources.confluent.transactions import ConfluentProducer, ConfluentTransactions

        return _ClientClasses(
            admin=ConfluentAdmin,
            source=ConfluentSource,
            producer=ConfluentProducer,
            transactions=ConfluentTransactions,
        )
    from streampca.sources.kafka_python.connection import KafkaPythonAdmin
    from streampca.sources.kafka_python.source import KafkaPythonSource
    from streampca.sources.kafka_python.transactions import KafkaPythonProducer, KafkaPythonTransactions

    return _ClientClasses(
        admin=KafkaPythonAdmin,
        source=KafkaPythonSource,
        producer=KafkaPythonProducer,
        transactions=KafkaPythonTransactions,
    )


def create_admin(settings: KafkaSettings, topic: str) -> Admin:
    """Create an admin client for a topic, which need not exist. Raises `SourceError`."""
    return _client_classes(settings).admin(settings, topic)


def require_writable(settings: KafkaSettings, topic: str) -> int:
    """Return the number of partitions of a topic. Raises `SourceError` unless it exists and may be written to."""
    with closing(create_admin(settings, topic)) as admin:
        description = admin.require_topic()
    if not description.is_writable:
        raise BrokerErrors(settings, topic).authorization_error(f"writing to topic {topic}")
    return len(description.partitions)


def read_configs(settings: KafkaSettings, topic: str) -> Mapping[str, str]:
    """Return the options of a topic; none if the user may not read them. Raises `SourceError`."""
    with closing(create_admin(settings, topic)) as admin:
        return admin.topic_configs()


def refuse_compacted_topic(settings: KafkaSettings, topic: str) -> bool:
    """Raise `SourceError` if a dead-letter topic is compacted, since compaction deletes dead letters.

    Return True if brokers say that the topic is not compacted. Return False if it is unknown whether the topic is
    compacted, because the user lacks the right DescribeConfigs.
    """
    configs = read_configs(settings, topic)
    if is_compacted(configs):
        raise SourceError(
            f"dead-letter topic {topic} at {settings.bootstrap_servers} is compacted ({CLEANUP_POLICY}="
            f"{configs[CLEANUP_POLICY]}), so that of letters with the same key only the last is kept; set "
            f"{CLEANUP_POLICY}=delete for it, or name another topic"
        )
    return CLEANUP_POLICY in configs


def create_client(settings: ConsumerSettings) -> Source:
    """Create a member of the consumer group. It joins the group when it polls first. Raises `SourceError`."""
    return _client_classes(settings).source(settings)


def would_brokers_accept_save(settings: ConsumerSettings, unanswered_step: str) -> bool:
    """Ask brokers whether each partition of a topic has enough replicas in sync; return False if no broker answers.

    `unanswered_step` is the step of a save at which brokers have not answered. At the step "dead letters", the
    dead-letter topic is checked; at any other step, such as "topic", the topic that the member reads.
    """
    topic_to_check = settings.topic
    if unanswered_step == "dead letters" and settings.dead_letter_topic:
        topic_to_check = settings.dead_letter_topic
    with suppress(StreampcaError), closing(create_admin(settings, topic_to_check)) as admin:
        in_sync_counts = admin.require_topic().in_sync.values()  # for each partition, its number of replicas in sync
        needed_count = int(admin.topic_configs().get("min.insync.replicas", 1))
        return min(in_sync_counts) >= needed_count
    return False


def open_reader(settings: KafkaSettings, topic: str) -> TopicReader:
    """Open a reader of the committed records of a topic. Raises `SourceError`."""
    with closing(create_admin(settings, topic)) as admin:
        log_bounds = admin.log_bounds()
    return TopicReader(create_client(_without_group(settings, topic)), topic, log_bounds)


def _without_group(settings: KafkaSettings, topic: str) -> ConsumerSettings:
    """Return the settings of a consumer that reads a topic with the same connection, and is not in a group.

    Only subclasses of `ConsumerSettings` can name a group. The result is of `ConsumerSettings` itself, so it has no
    group, even if `settings` have one. Without a group, kafka-python refuses a `group_instance_id`.
    """
    fields = dict(settings) | {"topic": topic, "group_instance_id": None}
    return ConsumerSettings.model_construct(**fields)


def create_producer(settings: ProduceSettings) -> ClientProducer:
    """Create a producer for the topic, which writes each record once. Raises `SourceError`."""
    return _client_classes(settings).producer(
        settings,
        settings.topic,
        full_queue_timeout_s=_PRODUCE_FULL_QUEUE_TIMEOUT_S,
        is_idempotent=True,
    )


def create_dead_letters(settings: ConsumerSettings) -> DeadLetters:
    """Create the writer of dead letters. Raises `SourceError`."""
    if settings.dead_letter_topic is None:
        return NoDeadLetters()
    return _client_classes(settings).producer(settings, settings.dead_letter_topic, is_idempotent=False)


def create_transactions(settings: ConsumerSettings, source: Any, topics: Sequence[str]) -> Transactions:
    """Create transactions that commit the offsets of `source`. Raises `SourceError`.

    The first of the `topics` is the topic of outputs.
    """
    # After a restart, a static member ends the transaction that it has left open.
    member_id = settings.group_instance_id or uuid.uuid4().hex
    return _client_classes(settings).transactions(
        settings,
        topics,
        transactional_id=f"{settings.group}-{member_id}",
        timeout_s=settings.session_timeout_s,
        source=source,
    )


def create_replay(settings: DeadLettersSettings) -> ReplayProducer:
    """Create the producer that sends records of dead letters to their topic again. Raises `SourceError`.

    It ends any other replay of the same dead-letter topic, since both have the same transactional id.
    """
    transactions = _client_classes(settings).transactions(
        settings,
        [settings.topic, settings.dead_letter_topic],
        transactional_id=f"streampca-replay-{settings.dead_letter_topic}",
        timeout_s=_REPLAY_TIMEOUT_S,  # after which brokers abort the transaction
    )
    # The client of a replay waits longer for brokers than the client of a member.
    transactions.begin_s = _REPLAY_TIMEOUT_S / 2  # a member, too, has half as long to start as to commit
    transactions.commit_s = _REPLAY_TIMEOUT_S
    return ReplayProducer(settings.topic, transactions)


def in_flight_limit_bytes(settings: ConsumerSettings) -> int:
    """Return how many bytes of records and vectors a member may have in flight."""
    limit = base.IN_FLIGHT_MIB * 2**20
    if settings.client == "confluent":
        return limit // 2  # librdkafka's own queue holds the other half
    return limit
