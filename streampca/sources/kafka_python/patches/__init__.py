"""Workarounds for bugs of kafka-python 3.0.12, in its internals. Each module lists its bugs by name.

No version ends them yet: its branch for 3.1 has the same code, as of 17 August 2026, though much of `kafka.net` has
moved. Try without each before pyproject.toml allows 3.1. The logger `kafka.coordinator.consumer` reports every
exception of a rebalance listener with a traceback: rebalance.py filters those that it raises on purpose.
"""

# Whichever of them is imported: all clients of this process are patched.
from streampca.sources.kafka_python.patches import membership

__all__ = ["membership"]
