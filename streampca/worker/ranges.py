"""Ranges of partitions by number, by which workers share the merging of many partitions.

The owner of a range's lowest partition merges the range, as the owner of the lowest of all publishes the model. Which
partitions are merged with which depends on their numbers alone, so the bits of a model do not depend on the workers.
"""

from collections.abc import Collection, Iterable, Mapping

FEWEST = 64  # partitions that are merged by ranges; with fewer, one worker merges them all


def size(partitions: int) -> int:
    """Partitions of a range: about the square root, so that a range is as much work as the subtotals of all ranges."""
    return 1 << (partitions.bit_length() - 1) // 2


def publishes(partitions: Collection[int], of_topic: Collection[int]) -> bool:
    """Whether the owner of these partitions publishes the model of all."""
    return bool(partitions) and min(of_topic, default=0) in partitions


def owned(partitions: Collection[int], of_topic: Collection[int]) -> tuple[int, ...]:
    """The numbers of the ranges that the owner of these partitions merges."""
    count = _count(of_topic)
    return tuple(sorted(p // size(count) for p in partitions if p % size(count) == 0)) if count >= FEWEST else ()


def split(offsets: Mapping[int, int]) -> dict[int, dict[int, int]]:
    """The offsets of partitions by the number of their range; nothing if there are too few partitions."""
    ranges: dict[int, dict[int, int]] = {}
    count = _count(offsets)
    for partition in sorted(offsets) if count >= FEWEST else ():
        ranges.setdefault(partition // size(count), {})[partition] = offsets[partition]
    return ranges


def _count(partitions: Iterable[int]) -> int:
    """How many there are up to the highest, whether or not they have messages yet."""
    return max(partitions, default=-1) + 1
