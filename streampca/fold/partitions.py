"""Numbers and names of partitions; a backfill is one more, beyond those that Kafka can have."""

BACKFILL = "backfill-"
FIRST_BACKFILL = 2**31


def backfill_partition(number: int) -> int:
    """The partition that stands for a backfill, numbered from 0."""
    return FIRST_BACKFILL + number


def partition_name(partition: int) -> str:
    """Display name: its number, or `backfill-<number>`."""
    return str(partition) if partition < FIRST_BACKFILL else f"{BACKFILL}{partition - FIRST_BACKFILL}"
