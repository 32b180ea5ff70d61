"""Ranges of partitions by number, by which workers share the merging of many partitions.

The owner of a range's lowest partition merges the range, as the owner of the lowest of all publishes the model. Which
partitions are merged with which depends on their numbers alone, so the bits of a model do not depend on the workers.
"""

from collections.abc import Collection, Mapping

SIZE = 16  # partitions; docs/performance.md says why
FEWEST = 64  # partitions that are merged by ranges; with fewer, one worker merges them all


def publishes(partitions: Collection[int], of_topic: Collection[int]) -> bool:
    """Whether the owner of these partitions publishes the model of all."""
    return bool(partitions) and min(of_topic, default=0) in partitions


def owned(partitions: Collection[int], of_topic: Collection[int]) -> tuple[int, ...]:
    """The numbers of the ranges that the owner of these partitions merges."""
    return tuple(sorted(p // SIZE for p in partitions if p % SIZE == 0)) if len(of_topic) >= FEWEST else ()


def split(offsets: Mapping[int, int]) -> dict[int, dict[int, int]]:
    """The offsets of partitions by the number of their range; nothing if there are too few partitions."""
    ranges: dict[int, dict[int, int]] = {}
    for partition in sorted(offsets) if len(offsets) >= FEWEST else ():
        ranges.setdefault(partition // SIZE, {})[partition] = offsets[partition]
    return ranges
