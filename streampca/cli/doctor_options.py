"""The checks of `streampca doctor` that compare options of topics: the largest record, and compaction."""

from collections.abc import Sequence

from streampca.errors import SourceError
from streampca.formats.record import Record
from streampca.settings.commands import ConsumerSettings, TransformSettings
from streampca.sources.clients import read_configs
from streampca.sources.dead_letters import ADDED_BYTES
from streampca.sources.topic_options import CLEANUP_POLICY, MAX_MESSAGE, is_compacted


def compare_largest_record_sizes(settings: ConsumerSettings) -> str:
    """Return a sentence on whether the dead-letter topic takes the largest record that the topic allows.

    If it does not, the sentence is a warning and no error is raised: most records are far smaller than the limit.
    """
    topic = settings.topic
    dead_letter_topic = settings.dead_letter_topic
    if dead_letter_topic is None:
        return "no dead-letter topic"
    limit_of_record = read_configs(settings, topic).get(MAX_MESSAGE)  # in bytes
    limit_of_letter = read_configs(settings, dead_letter_topic).get(MAX_MESSAGE)
    if limit_of_record is None or limit_of_letter is None:
        return f"unknown without the right DescribeConfigs on {topic} and {dead_letter_topic}"
    needed_bytes = int(limit_of_record) + ADDED_BYTES
    if int(limit_of_letter) >= needed_bytes:
        return f"{dead_letter_topic} takes every record of {topic}"
    return (
        f"warning: {dead_letter_topic} takes {limit_of_letter} bytes and {topic} {limit_of_record}, and a letter has "
        f"more headers than its record, so the largest may be refused: set {MAX_MESSAGE} of {dead_letter_topic} to "
        f"{needed_bytes}"
    )


def check_output_keys(settings: TransformSettings, newest: Sequence[tuple[int, Record]]) -> str:
    """Return a sentence on whether outputs have the keys that a compacted topic needs.

    Raises `SourceError` if a key is missing. `newest` has the newest record of each partition, sorted by time.
    """
    output_topic = settings.output_topic
    configs = read_configs(settings, output_topic)
    if CLEANUP_POLICY not in configs:
        return f"whether {output_topic} is compacted is unknown without the permission DescribeConfigs"
    if not is_compacted(configs):
        return f"not needed, since {output_topic} is not compacted"
    partitions_without_key = [partition for partition, record in newest if record.key is None]
    if settings.output_format == "arrow":
        cause = "Arrow outputs have no key"
    elif partitions_without_key:
        partition = partitions_without_key[-1]  # the partition that got a record last
        cause = f"the newest record of partition {partition} of {settings.topic} has no key"
    else:
        return f"{output_topic} is compacted, and the newest records of {settings.topic} have keys"
    raise SourceError(
        f"{output_topic} is compacted, so brokers refuse outputs without a key, and {cause}: set "
        f"{CLEANUP_POLICY}=delete for {output_topic}, or name another output_topic"
    )
