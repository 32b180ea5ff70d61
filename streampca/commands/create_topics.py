"""`streampca create-topics`: creates the topics that are missing, and changes none."""

from typing import Any, NamedTuple

from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import AuthorizationError, KafkaError, NoError, TopicAlreadyExistsError, for_code

from streampca.commands.printing import console
from streampca.errors import SourceError
from streampca.settings import CreateTopicsSettings
from streampca.sources.kafka_python.admin import admin_client
from streampca.sources.kafka_python.connection import Connection

_DEAD_LETTER_PARTITIONS = 1
_BROKERS_CHOICE = -1
_MAX_MESSAGE = "max.message.bytes"
_HEADERS_BYTES = 64 * 1024  # more than a dead letter's headers add to its record


class Requested(NamedTuple):
    """What the topics are to be; None: the broker's default, or no output topic."""

    partitions: int | None
    replication_factor: int | None
    output_topic: str | None


def run(settings: CreateTopicsSettings, requested: Requested) -> None:
    """Create the missing topics and print what there is. Raises `SourceError`."""
    connection = Connection(settings, settings.topic)
    admin = connection.connect(admin_client)
    try:
        topics = _Topics(connection, admin, requested.replication_factor)
        partitions = topics.ensure(settings.topic, requested.partitions)
        if settings.dead_letter_topic:
            topics.ensure_dead_letters(settings.dead_letter_topic, settings.topic)
        if requested.output_topic:
            topics.ensure(requested.output_topic, partitions)
    except KafkaError as error:
        raise connection.source_error(error) from None
    finally:
        admin.close()


class _Topics:
    """Topics of one cluster."""

    def __init__(self, connection: Connection, admin: Any, replication_factor: int | None) -> None:
        self._connection, self._admin, self._replication_factor = connection, admin, replication_factor
        self._out = console()

    def ensure(self, name: str, partitions: int | None) -> int:
        """Create the topic unless it exists, and print which; return its number of partitions."""
        return self._ensure(name, partitions, {"num_partitions": partitions or _BROKERS_CHOICE})

    def ensure_dead_letters(self, name: str, topic: str) -> None:
        """Create the dead-letter topic of a topic; it takes somewhat larger messages, as its records have headers."""
        try:
            configs = {_MAX_MESSAGE: str(self._max_message_bytes(topic) + _HEADERS_BYTES)}
        except AuthorizationError:  # who may create topics may still not read how they are configured
            configs = {}
        self._ensure(name, None, {"num_partitions": _DEAD_LETTER_PARTITIONS, "configs": configs})

    def _ensure(self, name: str, partitions: int | None, wanted: dict[str, Any]) -> int:
        found, action = self._partitions(name), "exists"
        if found is None:
            action = self._create(name, wanted)
            self._admin.wait_for_topics([name])
            found = self._partitions(name) or 0
        other = f", not {partitions}; it stays as it is" if partitions not in (None, found) else ""
        self._out.print(f"{name}: {action}, partitions: {found}{other}")
        return found

    def _partitions(self, name: str) -> int | None:
        """The number of partitions of a topic; None if it does not exist."""
        (found,) = self._admin.describe_topics([name])
        return None if found["error_code"] else len(found["partitions"])

    def _max_message_bytes(self, topic: str) -> int:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {_MAX_MESSAGE: None})
        found = self._admin.describe_configs([resource], config_filter="all")
        return int(found["topic"][topic][_MAX_MESSAGE]["value"])

    def _create(self, name: str, wanted: dict[str, Any]) -> str:
        """Create the topic; return what was done. Raises `SourceError`."""
        wanted = wanted | {"replication_factor": self._replication_factor or _BROKERS_CHOICE}
        (answer,) = self._admin.create_topics({name: wanted}, raise_errors=False)["topics"]
        problem = for_code(answer["error_code"])
        if problem is NoError:
            return "created"
        if problem is TopicAlreadyExistsError:  # created by somebody else a moment ago
            return "exists"
        if issubclass(problem, AuthorizationError):
            raise self._connection.messages.not_authorized(f"create topic {name}")
        raise SourceError(f"topic {name} cannot be created: {answer['error_message'] or problem.__name__}")
