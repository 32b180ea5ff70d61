"""Creates the clients that the settings name. confluent_kafka is optional."""

import uuid
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from importlib.util import find_spec
from typing import Any, TypeAlias

from streampca.errors import StreampcaError
from streampca.settings.commands import ConsumerSettings
from streampca.sources import base
from streampca.sources.base import DeadLetters, NoDeadLetters, Source, Transactions
from streampca.sources.events import Event, Records
from streampca.sources.kafka_python.connection import Connection, admin_client, topic_configs
from streampca.sources.kafka_python.source import KafkaPythonSource
from streampca.sources.kafka_python.transactions import KafkaPythonDeadLetters, KafkaPythonTransactions
from streampca.sources.prefetch import Prefetch

_Classes: TypeAlias = tuple[
    Callable[[ConsumerSettings], Source], Callable[[ConsumerSettings], DeadLetters], Callable[..., Transactions]
]
_POLLS = 5  # prefetch at most as many records as this many polls return


def client_and_other(settings: ConsumerSettings) -> str:
    """The client in use, and what the other would do."""
    if settings.client == "confluent":
        return "confluent; kafka-python (kafka_client=kafka-python) is several times slower"
    remedy = "kafka_client=confluent" if find_spec("confluent_kafka") else "pip install '.[fast]'"
    return f"kafka-python; confluent ({remedy}) is several times as fast"


def _classes(settings: ConsumerSettings) -> _Classes:
    """The client's implementations of `Source`, `DeadLetters` and `Transactions`."""
    if settings.client != "confluent":
        return KafkaPythonSource, KafkaPythonDeadLetters, KafkaPythonTransactions
    from streampca.sources.confluent.source import ConfluentSource
    from streampca.sources.confluent.transactions import ConfluentDeadLetters, ConfluentTransactions

    return ConfluentSource, ConfluentDeadLetters, ConfluentTransactions


def create_client(settings: ConsumerSettings) -> Source:
    """A member of the consumer group, which joins at its first poll. Raises `SourceError`."""
    return _classes(settings)[0](settings)


def could_save(settings: ConsumerSettings, needs: str) -> bool:
    """Return whether a new client is answered, and what a save `needs` has the leaders and replicas for writing."""
    topic = (needs == "dead letters" and settings.dead_letter_topic) or settings.topic
    with suppress(StreampcaError), closing((connection := Connection(settings, topic)).start(admin_client)) as admin:
        with connection.answers():
            (description,) = admin.describe_topics([topic])
            least = int(topic_configs(admin, topic).get("min.insync.replicas", 1))
        return all(p["leader_id"] >= 0 and len(p["isr_nodes"]) >= least for p in description["partitions"])
    return False


def create_dead_letters(settings: ConsumerSettings) -> DeadLetters:
    """Create the writer of dead letters; without a dead-letter topic, one that is never used. Raises `SourceError`."""
    return NoDeadLetters() if settings.dead_letter_topic is None else _classes(settings)[1](settings)


def create_transactions(settings: ConsumerSettings, source: Any, topics: Sequence[str]) -> Transactions:
    """Transactions of a source that `create_client` has created with the same settings. Raises `SourceError`."""
    name = f"{settings.group}-{settings.group_instance_id or uuid.uuid4().hex}"
    return _classes(settings)[2](settings, topics, name, settings.session_timeout_s, source)


def prefetching(source: Source, settings: ConsumerSettings, decode: Callable[[Records], Event]) -> Source:
    """Start a thread that polls the source and decodes its records."""
    limit_bytes = base.PREFETCH_MIB * 2**20
    if settings.client == "confluent":  # librdkafka's own queue holds the other half
        limit_bytes //= 2
    return Prefetch(source, _POLLS * base.MAX_POLL_RECORDS, limit_bytes, decode)
