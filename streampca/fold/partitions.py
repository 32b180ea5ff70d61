"""Numbers and names of partitions; a backfill is one more, beyond those that Kafka can have."""

BACKFILL = "backfill-"
FIRST_BACKFILL = 2**31


def backfill_partition(number: int) -> int:
    """The partition that stands for a backfill, numbered from 0."""
    return FIRST_BACKFILL + number


def partition_name(partition: int) -> str:
    """Display name: its number, or `backfill-<number>`."""
    return str(partition) if partition < FIRST_BACKFILL else f"{BACKFILL}{partition - FIRST_BACKFILL}"


def offsets_in(text: str) -> dict[int, int] | None:
    """The offsets of partitions in `0:1200,1:1177`; None if it is something else."""
    pairs = [pair.split(":") for pair in text.split(",")]
    if not all(len(pair) == 2 and all(number.strip().isdecimal() for number in pair) for pair in pairs):
        return None
    return {int(partition): int(offset) for partition, offset in pairs}
