"""Numbers and names of partitions. A backfill has the number of a partition that cannot exist in Kafka."""

from streampca.errors import SettingsError

BACKFILL = "backfill-"  # with which the names of backfills begin
FIRST_BACKFILL = 2**31  # the number of the first backfill; partitions of Kafka have smaller numbers


def backfill_partition(number: int) -> int:
    """Return the number of the partition that stands for a backfill. Backfills are counted from 0."""
    return FIRST_BACKFILL + number


def partition_name(partition: int) -> str:
    """Return the name to display: the partition's number, or `backfill-<number>`."""
    if partition < FIRST_BACKFILL:
        return str(partition)
    return f"{BACKFILL}{partition - FIRST_BACKFILL}"


def is_backfill(partition: int) -> bool:
    """Return whether the number stands for a backfill."""
    return partition >= FIRST_BACKFILL


def parse_partition(name: str) -> int | None:
    """Return the number of the partition named "7", or of the backfill named "backfill-7"; None for any other text."""
    digits = name.removeprefix(BACKFILL)
    if not (digits.isascii() and digits.isdecimal()):
        return None
    has_prefix = digits != name
    return backfill_partition(int(digits)) if has_prefix else int(digits)


def parse_offsets(text: str) -> dict[int, int] | None:
    """Return the offset of each partition from a text like `0:1200,1:1177`; None for any other text.

    Raises `SettingsError` if a partition is named twice.
    """
    offsets: dict[int, int] = {}
    for pair in text.split(","):
        partition, colon, offset = pair.partition(":")
        are_numbers = partition.strip().isdecimal() and offset.strip().isdecimal()
        if not colon or not are_numbers:
            return None
        if int(partition) in offsets:
            raise SettingsError(f"the offsets {text} name partition {int(partition)} twice")
        offsets[int(partition)] = int(offset)
    return offsets
