"""Admin clients of kafka-python, for the commands that change topics and groups."""

from typing import Any

from kafka.admin import KafkaAdminClient

_OPTIONS = KafkaAdminClient.DEFAULT_CONFIG.keys()


def admin_client(**options: Any) -> Any:
    """An admin client; it refuses the options that only consumers and producers have, so they are left out."""
    return KafkaAdminClient(**{name: option for name, option in options.items() if name in _OPTIONS})
