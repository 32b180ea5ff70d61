"""Where new partitions begin: at the earliest record, at the latest, at a time, or after the backfills."""

from collections.abc import Collection, Mapping, Sequence

from streampca.errors import SettingsError
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.partitions import is_backfill
from streampca.sources.base import Source
from streampca.stores.checkpoints import Checkpoints


def find_start_offsets(
    start: str | int, partitions: Collection[int], source: Source, backfills: Sequence[Checkpoint]
) -> Mapping[int, int]:
    """Return the offsets, by partition, at which new partitions begin, unless they begin at the earliest record.

    `start` is "earliest", "latest", "backfill", or a time in milliseconds since 1970.
    """
    if start == "earliest" or not partitions:
        return {}
    if start == "backfill":
        return _find_starts_after_backfills(partitions, source, backfills)
    if start == "latest":
        return source.offsets_at(partitions, None)  # None: the ends
    return source.offsets_at(partitions, int(start))


def find_backfills(checkpoints: Checkpoints) -> list[int]:
    """Return the numbers of the backfills in the store."""
    return [partition for partition in checkpoints.partitions() if is_backfill(partition)]


def read_backfills(checkpoints: Checkpoints) -> list[Checkpoint]:
    """Return the newest checkpoint of each backfill in the store. Raises `SettingsError` if there is none."""
    newest = [checkpoints.newest(number) for number in find_backfills(checkpoints)]
    backfills = [checkpoint for checkpoint in newest if checkpoint is not None]  # None: deleted since it was listed
    if not backfills:
        raise SettingsError(
            f"start is backfill, but the store holds no backfill of {checkpoints.topic}: run `streampca backfill` first"
        )
    return backfills


def _find_starts_after_backfills(
    partitions: Collection[int], source: Source, backfills: Sequence[Checkpoint]
) -> Mapping[int, int]:
    """Return the offset at which each partition begins after all backfills: the latest of their starts.

    There is at least one backfill. A partition that is absent is read from its first record on.
    """
    starts_by_backfill = [_find_starts_after(backfill, partitions, source) for backfill in backfills]
    latest_starts: dict[int, int] = {}
    for partition in partitions:
        latest = max(starts.get(partition, 0) for starts in starts_by_backfill)
        if latest > 0:
            latest_starts[partition] = latest
    return latest_starts


def _find_starts_after(backfill: Checkpoint, partitions: Collection[int], source: Source) -> Mapping[int, int]:
    """Return the offset, by partition, at which reading goes on after one backfill.

    A partition that is absent is read from its first record on.
    """
    end = backfill.backfill_end
    if end is None:  # the backfill's files end before the first record of the topic
        return {}
    if isinstance(end, int):  # milliseconds since 1970
        return source.offsets_at(partitions, end)
    return end  # by partition, the first offset that the backfill has not learned
