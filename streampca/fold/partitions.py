"""Numbers and names of partitions. A backfill has the number of a partition that Kafka cannot have."""

BACKFILL = "backfill-"
FIRST_BACKFILL = 2**31


def backfill_partition(number: int) -> int:
    """Return the partition that stands for a backfill, whose number is counted from 0."""
    return FIRST_BACKFILL + number


def partition_name(partition: int) -> str:
    """Return the name to display: the partition's number, or `backfill-<number>`."""
    if partition < FIRST_BACKFILL:
        return str(partition)
    return f"{BACKFILL}{partition - FIRST_BACKFILL}"


def offsets_in(text: str) -> dict[int, int] | None:
    """Return the offset of each partition in a text like `0:1200,1:1177`, or None if it is another text."""
    offsets = {}
    for pair in text.split(","):
        partition, colon, offset = pair.partition(":")
        if not (colon and partition.strip().isdecimal() and offset.strip().isdecimal()):
            return None
        offsets[int(partition)] = int(offset)
    return offsets
