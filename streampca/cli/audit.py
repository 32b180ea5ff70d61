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
    """Learn the records between two checkpoints again. If the result is not the second one, raise `StreampcaError`.

    `start` and `end` are the offsets of the checkpoints. None means the oldest and the newest checkpoint. If the
    newest is the only one, the audit starts at 0.
    """
    checkpoints = Checkpoints(open_store(settings.store), settings.topic)
    config = create_worker_config(settings)
    offsets = checkpoints.offsets(partition)
    # A worker with another setting has not learned the records before its start, so an audit cannot begin at 0.
    may_start_at_0 = settings.start == "earliest"
    start, end = choose_checkpoints(offsets, partition, start, end, may_start_at_0=may_start_at_0)
    saved = checkpoint_file.decode(checkpoints.read_file(partition, end))
    saved.refuse_other_settings(config.fold)  # raises if the checkpoint was learned with other settings of the model
    if start in offsets:
        fold_at_start = checkpoint_file.decode(checkpoints.read_file(partition, start)).fold
    else:  # start is 0
        fold_at_start = Fold.empty(config.fold.learning)
    messages_at_start = fold_at_start.stats.messages
    fold_at_end, count = _learn_again(settings, config, fold_at_start, partition, start, end)
    # `fold_at_end` ends behind the last record. The position of the checkpoint may be higher: markers of transactions,
    # which are not records, take offsets, too.
    learned_again = replace(saved, fold=fold_at_end.at(end))
    where = f"partition {partition}, offsets {start} to {end}: {count:,} records learned again"
    # Both are encoded in the format of this release: an earlier release may have written the checkpoint.
    has_same_bytes = checkpoint_file.encode(learned_again) == checkpoint_file.encode(saved)
    if not has_same_bytes:
        messages_learned = saved.fold.stats.messages - messages_at_start
        messages_learned_again = fold_at_end.stats.messages - messages_at_start
        if messages_learned_again < messages_learned:  # the bytes differ because the topic has lost records
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

    `offsets` are the offsets of the partition's checkpoints, ascending. `start` and `end` are options; None means that
    the option is not given. The end is then the newest checkpoint, and the start is

    - the oldest checkpoint, if it is older than the end;
    - 0, where nothing was learned yet, if no checkpoint is older than the end and `may_start_at_0`.

    Raises `SettingsError` if the end has no checkpoint, the start has no checkpoint and is not 0, or the start is not
    before the end.
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
    """Learn the records from `start` to before `end`; return the fold after them, and the number of records.

    Records that retention has deleted are left out.
    """
    count = 0
    with (
        closing(open_reader(settings, settings.topic)) as reader,
        threadpool_limits(1),  # so that the fold has the same bits as from a worker
    ):
        # The default is for a partition that the topic does not have: `read_between` raises an error that says so.
        earliest, _high_watermark = reader.log_bounds.get(partition, (start, end))
        first = max(start, earliest)
        all_records = reader.read_between(partition, first, end) if first < end else iter(())
        while records := list(itertools.islice(all_records, _BATCH_RECORDS)):
            batch = config.codec.decode_batch(records, end=records[-1].offset + 1)
            fold, _losses = fold.take(batch, config.fold)  # the next fold, which has learned the batch
            count += len(records)
    return fold, count
