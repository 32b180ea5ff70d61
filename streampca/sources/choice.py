"""Which client reads the topic; each is imported only where it is chosen, since one of them is an optional extra."""

from collections.abc import Callable

from streampca.settings import WorkerSettings
from streampca.sources.ahead import Ahead
from streampca.sources.base import Source
from streampca.stream.record import Event, Records

_POLLS_AHEAD = 5  # as many records as so many polls can bring


def source_of(settings: WorkerSettings, decode: Callable[[Records], Event]) -> Source:
    """A member of the group on the client that the settings name; records are decoded ahead, if ahead they are read.

    Raises `SourceError`.
    """
    source, most_bytes = _client_of(settings), int(settings.read_ahead_mib * 2**20)
    if settings.kafka_client == "confluent":  # librdkafka keeps one half in its own queue
        most_bytes //= 2
    if not most_bytes:
        return source
    return Ahead(source, _POLLS_AHEAD * settings.max_poll_records, most_bytes, decode)


def _client_of(settings: WorkerSettings) -> Source:
    if settings.kafka_client == "confluent":
        from streampca.sources.confluent import ConfluentSource

        return ConfluentSource(settings)
    from streampca.sources.kafka import KafkaSource

    return KafkaSource(settings)
