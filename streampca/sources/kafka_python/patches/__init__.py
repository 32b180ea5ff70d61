"""Workarounds for bugs of kafka-python 3.0.12, in its internals. Each module lists its bugs by name.

Those marked with * are also in its branch for 3.1, as of August 2026. pyproject.toml allows no 3.1: then try without
each; the others have their reason in a missing method. The logger `kafka.coordinator.consumer` reports every exception
of a rebalance listener with a traceback*: rebalance.py filters those that it raises on purpose.
"""

# Whichever of them is imported: all clients of this process are patched.
from streampca.sources.kafka_python.patches import membership

__all__ = ["membership"]
