"""`streampca audit`: learns the records between two checkpoints again, and compares the bytes of the result."""

import itertools
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from threadpoolctl import threadpool_limits

from streampca.cli.console import console
from streampca.cli.worker_config import create_worker_config
from streampca.errors import SettingsError, StreampcaError
from streampca.fold import checkpoint as files
from streampca.fold.fold import Fold
from streampca.settings.commands import WorkerSettings
from streampca.sources.clients import open_reader
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store
from streampca.worker.checkpointer import WorkerConfig

_RECORDS = 2000  # records in a batch; the size of batches changes no bit of the fold


def run(settings: WorkerSettings, partition: int, start: int | None, end: int | None) -> None:
    """Learn the records between two checkpoints again; raise `StreampcaError` if the second has other bytes.

    `start` and `end` are the offsets of the checkpoints; None stands for the oldest and the newest checkpoint.
    """
    checkpoints = Checkpoints(open_store(settings.store), settings.topic)
    config = create_worker_config(settings)
    kept = checkpoints.offsets(partition)
    start, end = _find_interval(kept, partition, start, end)
    written = files.decode(checkpoints.at(partition, end))
    written.refuse_other_settings(config.fold)
    before = files.decode(checkpoints.at(partition, start)).fold if start in kept else Fold.empty(config.fold.learning)
    fold, count = _learn_again(settings, config, before, partition, start, end)
    where = f"partition {partition}, offsets {start} to {end}: {count:,} records learned again"
    # Both are encoded in the format of this release: an earlier release may have written the checkpoint.
    if files.encode(replace(written, fold=fold.at(end))) != files.encode(written):
        raise StreampcaError(
            f"{where}, and the checkpoint has other bytes. The worker that wrote it may have had another processor, "
            "other libraries or an earlier release; if not, records were lost or learned twice: please report it"
        )
    console().print(f"{where}; the checkpoint has the same bytes")


def _find_interval(kept: Sequence[int], partition: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Return the offsets of the two checkpoints, by default the oldest and the newest. Raises `SettingsError`."""
    if start is None:
        start = kept[0] if kept else 0
    if end is None and kept:
        end = kept[-1]
    is_start = start == 0 or start in kept
    if end is None or end not in kept or not is_start or start >= end:
        raise SettingsError(
            f"--from and --to must be two checkpoints of partition {partition}, or 0; there are: "
            f"{', '.join(map(str, kept)) or 'none'}"
        )
    return start, end


def _learn_again(
    settings: WorkerSettings, config: WorkerConfig, fold: Fold, partition: int, start: int, end: int
) -> tuple[Fold, int]:
    """Learn the records from `start` to before `end`; return the fold after them, and the number of records."""
    count = 0
    with closing(open_reader(settings, settings.topic)) as reader, threadpool_limits(1):
        records = reader.between(partition, start, end)
        while some := list(itertools.islice(records, _RECORDS)):
            batch = config.codec.decode_batch(some, some[-1].offset + 1)
            fold, _ = fold.take(batch, config.fold)
            count += len(some)
    return fold, count
