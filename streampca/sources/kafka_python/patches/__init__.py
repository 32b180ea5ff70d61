"""Everything that uses kafka-python's internals: each module names the faults of version 3.0.12 that it works around.

One more is elsewhere. Logger `kafka.coordinator.consumer`: every exception of a rebalance listener is logged with a
traceback; rebalance.py filters those it raises on purpose.
"""

# Whichever of them is imported: all clients of this process are patched.
from streampca.sources.kafka_python.patches import membership

__all__ = ["membership"]
