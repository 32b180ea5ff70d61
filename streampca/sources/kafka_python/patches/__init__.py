"""Workarounds for bugs of kafka-python 3.0.12, in its internals. Each module lists its bugs by name.

Two end with 3.1, which pyproject.toml does not allow yet, and say so. No version ends the others: they are in the
branch for 3.1, too, as of August 2026, or a method is missing. The logger `kafka.coordinator.consumer` reports every
exception of a rebalance listener with a traceback: rebalance.py filters those that it raises on purpose.
"""

# Whichever of them is imported: all clients of this process are patched.
from streampca.sources.kafka_python.patches import membership

__all__ = ["membership"]
