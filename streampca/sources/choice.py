"""Which client reads the topic; each is imported only where it is chosen, since one of them is an optional extra."""

from streampca.settings import WorkerSettings
from streampca.sources.base import Source


def source_of(settings: WorkerSettings) -> Source:
    """A member of the group on the client that the settings name. Raises `SourceError`."""
    if settings.kafka_client == "confluent":
        from streampca.sources.confluent import ConfluentSource

        return ConfluentSource(settings)
    from streampca.sources.kafka import KafkaSource

    return KafkaSource(settings)
