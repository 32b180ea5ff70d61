"""Which client reads the topic; each is imported only where it is chosen, since one of them is an optional extra."""

from streampca.settings import WorkerSettings
from streampca.sources.ahead import Ahead
from streampca.sources.base import Source

_POLLS_AHEAD = 5  # as many records as so many polls can bring


def source_of(settings: WorkerSettings) -> Source:
    """A member of the group on the client that the settings name. Raises `SourceError`."""
    if settings.kafka_client == "confluent":  # librdkafka reads ahead in threads of its own, beside Python
        from streampca.sources.confluent import ConfluentSource

        return ConfluentSource(settings)
    from streampca.sources.kafka import KafkaSource

    most_bytes = int(settings.read_ahead_mib * 2**20)
    source = KafkaSource(settings)
    return Ahead(source, _POLLS_AHEAD * settings.max_poll_records, most_bytes) if most_bytes else source
