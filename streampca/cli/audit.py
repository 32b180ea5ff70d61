"""`streampca audit`: learns the records between two checkpoints again, and compares the bytes."""

import itertools
from contextlib import closing
from dataclasses import replace

from threadpoolctl import threadpool_limits

from streampca.cli.console import console
from streampca.cli.worker import create_worker_config
from streampca.errors import SettingsError, StreampcaError
from streampca.fold import checkpoint as files
from streampca.fold.fold import Fold
from streampca.settings.commands import WorkerSettings
from streampca.sources.clients import open_reader
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store

_RECORDS = 2000  # learned at a time: where they are cut changes no bit


def run(settings: WorkerSettings, partition: int, start: int | None, end: int | None) -> None:
    """Print that the bytes are the same. Raises `StreampcaError` if they are not."""
    checkpoints, config = Checkpoints(open_store(settings.store), settings.topic), create_worker_config(settings)
    kept = checkpoints.offsets(partition)
    start, end = kept[0] if start is None and kept else start or 0, kept[-1] if end is None and kept else end
    if end not in kept or (start not in kept and start != 0) or not start < end:
        raise SettingsError(
            f"--from and --to must be two checkpoints of partition {partition}, or 0; there are: "
            f"{', '.join(map(str, kept)) or 'none'}"
        )
    written = files.decode(stored := checkpoints.at(partition, end))
    written.refuse_other_settings(config.fold)
    before = files.decode(checkpoints.at(partition, start)).fold if start in kept else Fold.empty(config.fold.learning)
    with closing(open_reader(settings, settings.topic)) as reader, threadpool_limits(1):
        fold, count, records = before, 0, reader.between(partition, start, end)
        while some := list(itertools.islice(records, _RECORDS)):
            fold = fold.take(config.codec.batch_of(some, some[-1].offset + 1), config.fold)[0]
            count += len(some)
    where = f"partition {partition}, offsets {start} to {end}: {count:,} records learned again"
    if files.encode(replace(written, fold=fold.at(end))) != stored:
        raise StreampcaError(
            f"{where}, and the checkpoint has other bytes. The worker that wrote it may have had another processor or "
            "other libraries; if not, records were lost or learned twice: please report it"
        )
    console().print(f"{where}; the checkpoint has the same bytes")
