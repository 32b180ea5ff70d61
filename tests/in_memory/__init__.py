"""A topic, its consumer group and its source in memory; a script controls every single poll.

    topic = MemoryTopic(partitions=2)
    topic.append(0, b"[1, 2]", b"[3, 4]")
    source = MemorySource(topic, script=[1, None, lambda: topic.evict(source), SourceError("away for good")])

The members of a topic form a group: when one joins, closes or is evicted, all partitions are revoked and assigned
again, as `sources.base` specifies.
"""

from tests.in_memory.source import MemorySource, Step
from tests.in_memory.topic import MemoryTopic
from tests.in_memory.transactions import MemoryDeadLetters, MemoryTransactions

__all__ = ["MemoryDeadLetters", "MemorySource", "MemoryTopic", "MemoryTransactions", "Step"]
