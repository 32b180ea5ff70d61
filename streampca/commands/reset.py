"""`streampca reset`: deletes the consumer group's committed offsets of the topic."""

from collections.abc import Callable, Mapping
from typing import Any

from kafka import TopicPartition
from kafka.errors import GroupIdNotFoundError, GroupSubscribedToTopicError, KafkaError, NoError, NonEmptyGroupError

from streampca.commands.console import console
from streampca.errors import SourceError, StreampcaError
from streampca.settings import ResetSettings
from streampca.sources.kafka_python.connection import Connection, admin_client


def run(settings: ResetSettings, ask: Callable[[str], bool] | None) -> None:
    """Delete the offsets if `ask`, which gets a question, agrees. Raises `SourceError` if the group has members."""
    connection = Connection(settings, settings.topic)
    admin = connection.start(admin_client)
    try:
        _reset(admin, settings, ask)
    except (GroupSubscribedToTopicError, NonEmptyGroupError):
        raise SourceError(f"group {settings.group_id} has active members: stop its workers, then reset") from None
    except KafkaError as error:
        raise connection.source_error(error) from None
    finally:
        admin.close()


def _reset(admin: Any, settings: ResetSettings, ask: Callable[[str], bool] | None) -> None:
    offsets = _committed(admin, settings)
    out = console()
    if not offsets:
        out.print(f"group {settings.group_id} has no committed offsets of {settings.topic}")
        return
    listed = ", ".join(f"{tp.partition}: {offset}" for tp, offset in sorted(offsets.items()))
    out.print(f"group {settings.group_id}, topic {settings.topic}, committed offsets by partition: {listed}")
    if ask and not ask("Delete them? Workers then continue from the checkpoints of whichever store they have"):
        raise StreampcaError("nothing was deleted")
    for tp, error in admin.delete_group_offsets(settings.group_id, list(offsets)).items():
        if error is not NoError:
            raise error(f"partition {tp.partition}")
    out.print(f"deleted {len(offsets)} committed offsets")


def _committed(admin: Any, settings: ResetSettings) -> Mapping[TopicPartition, int]:
    try:
        found = admin.list_group_offsets({settings.group_id: None}).get(settings.group_id, {})
    except GroupIdNotFoundError:
        return {}
    return {tp: known.offset for tp, known in found.items() if tp.topic == settings.topic and known.offset >= 0}
