"""Options of a topic, as `Admin.topic_configs` returns them: compaction, and the largest record."""

from collections.abc import Mapping

CLEANUP_POLICY = "cleanup.policy"
MAX_MESSAGE = "max.message.bytes"


def is_compacted(configs: Mapping[str, str]) -> bool:
    """Return whether a topic is compacted: of records with the same key, brokers keep the last; False if unknown."""
    return "compact" in configs.get(CLEANUP_POLICY, "")
