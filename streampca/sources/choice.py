"""Which client reads the topic; each is imported only where it is chosen, since one of them is an optional extra."""

from collections.abc import Callable

from streampca.settings import WorkerSettings
from streampca.sources.base import DeadLetters, NoDeadLetters, Source, TopicInspector
from streampca.sources.prefetch import Prefetch
from streampca.stream.record import Event, Records

_POLLS_AHEAD = 5  # as many records as so many polls can bring


def client_of(settings: WorkerSettings) -> Source:
    """A member of the group on the client that the settings name. Raises `SourceError`."""
    if settings.kafka_client == "confluent":
        from streampca.sources.confluent.source import ConfluentSource

        return ConfluentSource(settings)
    from streampca.sources.kafka_python.source import KafkaPythonSource

    return KafkaPythonSource(settings)


def inspector_of(settings: WorkerSettings) -> TopicInspector:
    """Answers questions about the topic, on the client that the settings name. Raises `SourceError`."""
    if settings.kafka_client == "confluent":
        from streampca.sources.confluent.inspector import ConfluentInspector

        return ConfluentInspector(settings)
    from streampca.sources.kafka_python.inspector import KafkaPythonInspector

    return KafkaPythonInspector(settings)


def dead_letters_of(settings: WorkerSettings) -> DeadLetters:
    """Where rejected records are written to; nowhere without a dead-letter topic. Raises `SourceError`."""
    if settings.dead_letter_topic is None:
        return NoDeadLetters()
    if settings.kafka_client == "confluent":
        from streampca.sources.confluent.dead_letters import ConfluentDeadLetters

        return ConfluentDeadLetters(settings)
    from streampca.sources.kafka_python.dead_letters import KafkaPythonDeadLetters

    return KafkaPythonDeadLetters(settings)


def reading_ahead(source: Source, settings: WorkerSettings, decode: Callable[[Records], Event]) -> Source:
    """The same, read by a thread of its own from now on, which decodes what it reads; unless nothing is to be kept."""
    most_bytes = int(settings.read_ahead_mib * 2**20)
    if settings.kafka_client == "confluent":  # librdkafka keeps one half in its own queue
        most_bytes //= 2
    if not most_bytes:
        return source
    return Prefetch(source, _POLLS_AHEAD * settings.max_poll_records, most_bytes, decode)
