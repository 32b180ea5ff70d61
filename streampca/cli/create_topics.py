"""`streampca create-topics`: creates the topics that are missing, and changes none."""

from contextlib import closing

from streampca.cli.console import console
from streampca.settings.commands import CreateTopicsSettings
from streampca.sources.broker_errors import TopicError
from streampca.sources.clients import create_admin, read_configs, refuse_compacted_topic
from streampca.sources.dead_letters import ADDED_BYTES
from streampca.sources.topic_options import CLEANUP_POLICY, MAX_MESSAGE

_BROKERS_DEFAULT = -1  # with this number of partitions or replicas, the broker takes its default
_NEW_TOPIC_TIMEOUT_S = 10.0  # a broker may take so long until it knows a new topic


def run(settings: CreateTopicsSettings, partitions: int | None, replication_factor: int | None) -> None:
    """Create the missing topics, and print which topics exist now."""
    partition_count = _create_if_missing(settings, settings.topic, partitions, replication_factor)
    if settings.dead_letter_topic:
        # By default, a broker may compact a topic, which would remove letters.
        configs = {CLEANUP_POLICY: "delete", **_options_of_dead_letter_topic(settings)}
        _create_if_missing(
            settings, settings.dead_letter_topic, partitions=1, replication_factor=replication_factor, **configs
        )
        refuse_compacted_topic(settings, settings.dead_letter_topic)
    if settings.output_topic:  # an output goes to the partition of the same number
        _create_if_missing(settings, settings.output_topic, partition_count, replication_factor)


def _create_if_missing(
    settings: CreateTopicsSettings,
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    **configs: str,
) -> int:
    """Create a topic unless it exists. Print and return its number of partitions."""
    with closing(create_admin(settings, name)) as admin:
        try:
            topic = admin.require_topic(wait_for_topic_s=0)  # raises at once if the topic is missing
            action = "exists"
        except TopicError:
            admin.create(partitions or _BROKERS_DEFAULT, replication_factor or _BROKERS_DEFAULT, configs)
            # Brokers may not know a new topic at once.
            topic = admin.require_topic(timeout_s=_NEW_TOPIC_TIMEOUT_S, wait_for_topic_s=_NEW_TOPIC_TIMEOUT_S)
            action = "created"
    count = len(topic.partitions)
    line = f"{name}: {action}, partitions: {count}"
    is_wanted_count = partitions is None or count == partitions
    # A dead-letter topic may have any number of partitions.
    if not is_wanted_count and name != settings.dead_letter_topic:
        line += f", not {partitions}; it stays as it is"
    console().print(line)
    return count


def _options_of_dead_letter_topic(settings: CreateTopicsSettings) -> dict[str, str]:
    """Return options with which the dead-letter topic accepts the topic's largest record and the headers we add.

    If the user may not read the options of the topic, return no options.
    """
    configs = read_configs(settings, settings.topic)
    if not configs:
        return {}
    largest_record_bytes = int(configs[MAX_MESSAGE])
    return {MAX_MESSAGE: str(largest_record_bytes + ADDED_BYTES)}
