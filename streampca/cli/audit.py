"""`streampca audit`: learns the records between two checkpoints again, and compares the bytes of the result."""

import itertools
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from threadpoolctl import threadpool_limits

from streampca.cli.console import console
from streampca.cli.worker_config import create_worker_config
from streampca.errors import SettingsError, StreampcaError
from streampca.fold import checkpoint as checkpoint_file
from streampca.fold.fold import Fold
from streampca.settings.commands import WorkerSettings
from streampca.sources.clients import open_reader
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store
from streampca.worker.checkpointer import WorkerConfig

_BATCH_RECORDS = 2000  # the size of batches changes no bit of the fold


def run(settings: WorkerSettings, partition: int, start: int | None, end: int | None) -> None:
    """Learn the records between two checkpoints again. Raises `StreampcaError` if the result has other bytes."""
    checkpoints = Checkpoints(open_store(settings.store), settings.topic)
    config = create_worker_config(settings)
    offsets = checkpoints.offsets(partition)
    may_start_at_0 = settings.start == "earliest"
    start, end = choose_checkpoints(offsets, partition, start, end, may_start_at_0=may_start_at_0)
    saved = checkpoint_file.decode(checkpoints.read_file(partition, end))
    saved.refuse_other_settings(config.fold)
    if start in offsets:
        fold_at_start = checkpoint_file.decode(checkpoints.read_file(partition, start)).fold
    else:
        fold_at_start = Fold.empty(config.fold.learning)
    messages_at_start = fold_at_start.stats.messages
    fold_at_end, count = _learn_again(settings, config, fold_at_start, partition, start, end)
    # The checkpoint may end later, since markers of transactions take offsets, too.
    learned_again = replace(saved, fold=fold_at_end.at(end))
    where = f"partition {partition}, offsets {start} to {end}: {count:,} records learned again"
    # An earlier release may have encoded the checkpoint in another format.
    has_same_bytes = checkpoint_file.encode(learned_again) == checkpoint_file.encode(saved)
    if not has_same_bytes:
        messages_learned = saved.fold.stats.messages - messages_at_start
        messages_learned_again = fold_at_end.stats.messages - messages_at_start
        if messages_learned_again < messages_learned:
            raise StreampcaError(
                f"partition {partition}, offsets {start} to {end}: {messages_learned:,} messages were learned, and the "
                f"topic now holds {messages_learned_again:,} of them; compaction or retention has deleted the others, "
                "so audit newer checkpoints, soon after they were saved"
            )
        raise StreampcaError(
            f"{where}, and the checkpoint has other bytes. The worker that wrote it may have had another processor, "
            "other libraries or an earlier release; if not, records were lost or learned twice: please report it"
        )
    console().print(f"{where}; the checkpoint has the same bytes")


def choose_checkpoints(
    offsets: Sequence[int], partition: int, start: int | None, end: int | None, *, may_start_at_0: bool
) -> tuple[int, int]:
    """Return the offsets of the checkpoints at the start and the end of the audit.

    Without `start`, it is the oldest checkpoint before the end, or 0. Without `end`, it is the newest. Raises
    `SettingsError` if there is no such checkpoint.
    """
    if end is None and offsets:
        end = offsets[-1]
    if start is None:
        oldest = offsets[0] if offsets else 0
        has_older = end is not None and oldest < end
        start = 0 if may_start_at_0 and not has_older else oldest
    can_start = start == 0 or start in offsets
    if end is None or end not in offsets or not can_start or start >= end:
        raise SettingsError(
            f"--from and --to must be two checkpoints of partition {partition}, or 0; there are: "
            f"{', '.join(map(str, offsets)) or 'none'}"
        )
    return start, end


def _learn_again(
    settings: WorkerSettings, config: WorkerConfig, fold: Fold, partition: int, start: int, end: int
) -> tuple[Fold, int]:
    """Learn the records from `start` to before `end`; return the fold after them, and their number."""
    count = 0
    with (
        closing(open_reader(settings, settings.topic)) as reader,
        threadpool_limits(1),  # for the same bits as from a worker
    ):
        # If the topic lacks the partition, `read_between` raises.
        earliest, _high_watermark = reader.log_bounds.get(partition, (start, end))
        first = max(start, earliest)
        all_records = reader.read_between(partition, first, end) if first < end else iter(())
        while records := list(itertools.islice(all_records, _BATCH_RECORDS)):
            batch = config.codec.decode_batch(records, end=records[-1].offset + 1)
            fold, _losses = fold.take(batch, config.fold)
            count += len(records)
    return fold, count
