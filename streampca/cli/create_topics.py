"""`streampca create-topics`: creates the topics that are missing, and changes none."""

from contextlib import closing

from streampca.cli.console import console
from streampca.settings.commands import CreateTopicsSettings
from streampca.sources.client_connection import TopicError
from streampca.sources.clients import create_admin

_BROKERS = -1  # the broker's own number
_MAX_MESSAGE = "max.message.bytes"
_HEADERS_BYTES = 64 * 1024  # more than a dead letter's headers add to its record
_CREATED_S = 10.0  # how long a broker may take to know a new topic


def run(settings: CreateTopicsSettings, partitions: int | None, replication_factor: int | None) -> None:
    """Create the missing topics and print what there is; None: the broker's number. Raises `SourceError`."""

    def ensure(name: str, number: int | None, **configs: str) -> int:
        """Create the topic unless it exists, and print which; return its number of partitions."""
        with closing(create_admin(settings, name)) as admin:
            try:
                topic, is_new = admin.require_topic(missing_s=0), False
            except TopicError:
                admin.create(number or _BROKERS, replication_factor or _BROKERS, configs)
                topic, is_new = admin.require_topic(_CREATED_S, _CREATED_S), True
        count, expected = len(topic.in_sync), number if name != settings.dead_letter_topic else None
        other = f", not {expected}; it stays as it is" if expected not in (None, count) else ""
        console().print(f"{name}: {'created' if is_new else 'exists'}, partitions: {count}{other}")
        return count

    count = ensure(settings.topic, partitions)
    if settings.dead_letter_topic:
        ensure(settings.dead_letter_topic, 1, **_larger_messages(settings))
    if settings.output_topic:
        ensure(settings.output_topic, count)


def _larger_messages(settings: CreateTopicsSettings) -> dict[str, str]:
    """The configuration by which dead letters may be larger than their records, as they have more headers."""
    with closing(create_admin(settings, settings.topic)) as admin:
        configs = admin.topic_configs()  # who may create topics may still not read how they are configured
    return {_MAX_MESSAGE: str(int(configs[_MAX_MESSAGE]) + _HEADERS_BYTES)} if configs else {}
