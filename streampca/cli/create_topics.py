"""`streampca create-topics`: creates the topics that are missing, and changes none."""

from contextlib import closing
from typing import Any

from kafka.errors import AuthorizationError, NoError, TopicAlreadyExistsError, for_code

from streampca.cli.console import console
from streampca.errors import SourceError
from streampca.settings.commands import CreateTopicsSettings
from streampca.sources.kafka_python.connection import Connection, admin_client, topic_configs

_BROKERS = -1  # the broker's own number
_MAX_MESSAGE = "max.message.bytes"
_HEADERS_BYTES = 64 * 1024  # more than a dead letter's headers add to its record


def run(settings: CreateTopicsSettings, partitions: int | None, replication_factor: int | None) -> None:
    """Create the missing topics and print what there is; None: the broker's number. Raises `SourceError`."""
    connection = Connection(settings, settings.topic)
    admin = connection.connect(admin_client)

    def ensure(name: str, number: int | None, **configs: str) -> int:
        """Create the topic unless it exists, and print which; return its number of partitions."""
        count, action = _partitions(admin, name), "exists"
        if count is None:
            numbers = {"num_partitions": number or _BROKERS, "replication_factor": replication_factor or _BROKERS}
            (answer,) = admin.create_topics({name: {**numbers, "configs": configs}}, raise_errors=False)["topics"]
            problem = for_code(answer["error_code"])
            if issubclass(problem, AuthorizationError):
                raise connection.messages.not_authorized(f"create topic {name}")
            if problem not in (NoError, TopicAlreadyExistsError):
                raise SourceError(f"topic {name} cannot be created: {answer['error_message'] or problem.__name__}")
            action = "created" if problem is NoError else "exists"  # created by somebody else a moment ago
            admin.wait_for_topics([name])
            count = _partitions(admin, name) or 0
        expected = number if name != settings.dead_letter_topic else None
        other = f", not {expected}; it stays as it is" if expected not in (None, count) else ""
        console().print(f"{name}: {action}, partitions: {count}{other}")
        return count

    with closing(admin), connection.answers():
        count = ensure(settings.topic, partitions)
        if settings.dead_letter_topic:
            ensure(settings.dead_letter_topic, 1, **_larger_messages(admin, settings.topic))
        if settings.output_topic:
            ensure(settings.output_topic, count)


def _partitions(admin: Any, name: str) -> int | None:
    """The number of partitions of a topic; None if it does not exist."""
    (description,) = admin.describe_topics([name])
    return None if description["error_code"] else len(description["partitions"])


def _larger_messages(admin: Any, topic: str) -> dict[str, str]:
    """The configuration by which dead letters may be larger than their records, as they have more headers."""
    configs = topic_configs(admin, topic)  # who may create topics may still not read how they are configured
    return {_MAX_MESSAGE: str(int(configs[_MAX_MESSAGE]) + _HEADERS_BYTES)} if configs else {}
