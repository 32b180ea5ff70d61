"""`streampca create-topics`: creates the topics that are missing, and changes none."""

from contextlib import closing

from streampca.cli.console import console
from streampca.settings.commands import CreateTopicsSettings
from streampca.sources.client_connection import TopicError
from streampca.sources.clients import create_admin

_DEFAULT = -1  # by this number the broker takes the one that it is configured with
_MAX_MESSAGE = "max.message.bytes"
_HEADERS_BYTES = 64 * 1024  # more than a dead letter's headers add to its record
_CREATED_S = 10.0  # how long a broker may take to know a new topic


def run(settings: CreateTopicsSettings, partitions: int | None, replication_factor: int | None) -> None:
    """Create the missing topics, and print which topics exist now. Raises `SourceError`.

    If `partitions` or `replication_factor` is None, the broker decides it.
    """

    def ensure(name: str, number: int | None, **configs: str) -> int:
        """If the topic does not exist, create it with `number` partitions; return how many it has."""
        with closing(create_admin(settings, name)) as admin:
            try:
                topic = admin.require_topic(missing_s=0)
                is_new = False
            except TopicError:
                admin.create(number or _DEFAULT, replication_factor or _DEFAULT, configs)
                topic = admin.require_topic(_CREATED_S, _CREATED_S)
                is_new = True
        count = len(topic.in_sync)
        expected = number if name != settings.dead_letter_topic else None  # a dead-letter topic may have any number
        other = f", not {expected}; it stays as it is" if expected not in (None, count) else ""
        console().print(f"{name}: {'created' if is_new else 'exists'}, partitions: {count}{other}")
        return count

    count = ensure(settings.topic, partitions)
    if settings.dead_letter_topic:
        ensure(settings.dead_letter_topic, 1, **_allow_larger_messages(settings))
    if settings.output_topic:
        ensure(settings.output_topic, count)


def _allow_larger_messages(settings: CreateTopicsSettings) -> dict[str, str]:
    """Return the configuration of a dead-letter topic that holds the topic's largest records with more headers.

    It is empty if the user may not read the configuration of the topic.
    """
    with closing(create_admin(settings, settings.topic)) as admin:
        configs = admin.topic_configs()
    return {_MAX_MESSAGE: str(int(configs[_MAX_MESSAGE]) + _HEADERS_BYTES)} if configs else {}
