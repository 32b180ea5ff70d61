"""`streampca audit`: learns the records between two checkpoints again, and compares the bytes of the result."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from threadpoolctl import threadpool_limits

from streampca.cli.console import console
from streampca.cli.worker_config import create_worker_config
from streampca.errors import SettingsError, StreampcaError
from streampca.fold import checkpoint as checkpoint_file
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold
from streampca.formats.record import Record
from streampca.settings.commands import WorkerSettings
from streampca.sources.clients import open_reader
from streampca.sources.topic_reader import TopicReader
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store
from streampca.worker.checkpointer import WorkerConfig

_BATCH_RECORDS = 2000  # the size of batches changes no bit of the fold


def run(settings: WorkerSettings, partition: int, start: int | None, end: int | None) -> None:
    """Learn the records between two checkpoints again. Raises `StreampcaError` if the result has other bytes."""
    checkpoints = Checkpoints(open_store(settings.store), settings.topic)
    config = create_worker_config(settings)
    offsets = checkpoints.offsets(partition)
    workers_begin_at_0 = settings.start == "earliest"  # the earliest offset is 0 if no record was deleted
    start, end = choose_checkpoints(offsets, partition, start, end, workers_begin_at_0=workers_begin_at_0)
    saved = checkpoint_file.decode(checkpoints.read_file(partition, end))
    saved.refuse_other_settings(config.fold)
    if start in offsets:
        fold_at_start = checkpoint_file.decode(checkpoints.read_file(partition, start)).fold
    else:  # the start is 0
        fold_at_start = Fold.empty(config.fold.learning)
    fold_at_end, record_count = _learn_again(settings, config, fold_at_start, partition, start, end)
    where = f"partition {partition}, offsets {start} to {end}"
    done = f"{where}: {record_count:,} records learned again"
    if _have_equal_bytes(saved, fold_at_end):
        console().print(f"{done}; the checkpoint has the same bytes")
        return
    # These raise an error with the cause if the worker had learned more messages, or fewer, than were learned now.
    _refuse_deleted_messages(where, fold_at_start, saved.fold, fold_at_end)
    if start not in offsets:  # then the start is 0, and the worker may have begun at a later offset
        _refuse_if_worker_began_later(where, saved.fold, fold_at_end)
    raise StreampcaError(
        f"{done}, and the checkpoint has other bytes. The worker that wrote it may have had another processor, "
        "other libraries or an earlier release; if not, records were lost or learned twice: please report it"
    )


def _have_equal_bytes(saved: Checkpoint, learned_again: Fold) -> bool:
    """Return whether the fold that was learned again would be saved with the bytes of the saved checkpoint."""
    # Markers of transactions take offsets, too, so the fold may end before the saved position. `at` moves it there.
    checkpoint_now = replace(saved, fold=learned_again.at(saved.fold.position))
    # Both are encoded now, because an earlier release may have encoded the saved file in another format.
    return checkpoint_file.encode(checkpoint_now) == checkpoint_file.encode(saved)


def _refuse_deleted_messages(where: str, at_start: Fold, saved: Fold, learned_again: Fold) -> None:
    """Raise `StreampcaError` if fewer messages were learned again than the worker had learned."""
    learned_count = saved.stats.messages - at_start.stats.messages
    count_now = learned_again.stats.messages - at_start.stats.messages
    if count_now < learned_count:
        raise StreampcaError(
            f"{where}: {learned_count:,} messages were learned, and the topic now holds {count_now:,} of them; "
            "compaction or retention has deleted the others, so audit newer checkpoints, soon after they were saved"
        )


def _refuse_if_worker_began_later(where: str, saved: Fold, learned_again: Fold) -> None:
    """If more messages were learned again from offset 0 on than the worker had learned, raise `StreampcaError`.

    In this case, the worker had begun at a later offset.
    """
    learned_count, count_now = saved.stats.messages, learned_again.stats.messages
    if count_now > learned_count:
        raise StreampcaError(
            f"{where}: {learned_count:,} messages were learned, and the topic holds {count_now:,} there, so the worker "
            "did not begin at 0: audit between two checkpoints"
        )


def choose_checkpoints(
    offsets: Sequence[int], partition: int, start: int | None, end: int | None, *, workers_begin_at_0: bool
) -> tuple[int, int]:
    """Return the offsets, start and end, between which records are learned again.

    `offsets` are the offsets of all checkpoints. By default, the end is the newest checkpoint, and the start is the
    oldest. Raises `SettingsError` if the start or the end is not a checkpoint; the start may also be 0.
    """
    oldest = min(offsets, default=0)
    if end is None:
        end = max(offsets, default=0)  # without checkpoints, an error is raised below
    if start is None:
        has_earlier_checkpoint = oldest < end
        start = oldest  # if this is also the end, an error is raised below
        if workers_begin_at_0 and not has_earlier_checkpoint:
            start = 0
    is_known_start = start == 0 or start in offsets
    if end not in offsets or not is_known_start or start >= end:
        raise SettingsError(
            f"--from and --to must be two checkpoints of partition {partition}, or 0; there are: "
            f"{', '.join(map(str, offsets)) or 'none'}"
        )
    return start, end


def _learn_again(
    settings: WorkerSettings, config: WorkerConfig, fold: Fold, partition: int, start: int, end: int
) -> tuple[Fold, int]:
    """Learn the records from `start` to before `end` again, in the same way as a worker.

    `fold` is the fold at `start`. Returns the fold at `end`, and the number of records.
    """
    count = 0
    with (
        closing(open_reader(settings, settings.topic)) as reader,
        threadpool_limits(1),  # for the same bits as from a worker
    ):
        remaining_records = _read_remaining_records(reader, partition, start, end)
        while records := list(itertools.islice(remaining_records, _BATCH_RECORDS)):
            batch = config.codec.decode_batch(records, next_offset=records[-1].offset + 1)
            fold, _losses = fold.take(batch, config.fold)
            count += len(records)
    return fold, count


def _read_remaining_records(reader: TopicReader, partition: int, start: int, end: int) -> Iterator[Record]:
    """Yield the records from `start` to before `end` that the topic still has.

    Retention may have deleted the first of these records.
    """
    if partition in reader.log_bounds:  # for any other partition, `read_between` raises
        earliest, _high_watermark = reader.log_bounds[partition]
        start = max(start, earliest)
    if start < end:
        yield from reader.read_between(partition, start, end)
