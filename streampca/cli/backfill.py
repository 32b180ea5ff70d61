"""`streampca backfill`: learns the past of a topic from files."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from streampca.cli.console import console, iso_time, print_notes, print_warning, progress
from streampca.cli.locations import check_writable
from streampca.cli.options import parse_time_ms
from streampca.cli.worker_config import create_worker_config
from streampca.errors import PartitionsMissingError, SettingsError, explain_missing_extra
from streampca.files.columns import FileOptions
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import FoldConfig
from streampca.fold.partitions import parse_offsets, partition_name
from streampca.formats.seen_names import describe_unseen
from streampca.settings.commands import WorkerSettings
from streampca.stores.base import Store
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store
from streampca.stores.models import Models
from streampca.stores.process_status import ProcessStatuses
from streampca.worker.publisher import Publisher

if TYPE_CHECKING:
    from streampca.backfill import BackfillPlan


def run(
    settings: WorkerSettings, sources: Sequence[str], file_options: FileOptions, timestamp_column: str | None,
    until: str | None, backfill_number: int, scheduler: str | None, rejects: Path | None,
) -> None:  # fmt: skip
    """Learn the rows of files, save a checkpoint, and print what was learned.

    `backfill_number` tells the backfills of a topic apart.
    """
    with explain_missing_extra("dask" if scheduler else "backfill", needed_by="this"):
        from streampca.backfill import engines
        from streampca.backfill.execute import add_names_of_dimensions, execute
        from streampca.backfill.folding import decode_element_indices
        from streampca.files.chunks import chunks_of

        engine = engines.on_dask(scheduler) if scheduler else engines.on_processes()
    if rejects:
        check_writable(str(rejects), ".parquet")
    chunks = chunks_of(sources)
    plan = _make_plan(settings, file_options, timestamp_column, until, backfill_number)
    store = open_store(settings.store)
    plan, first_file = add_names_of_dimensions(store, plan, chunks)  # the first file may have the names
    print_notes(first_file)  # what was guessed about the file, such as its separator
    with progress("learning", len(chunks)) as update:

        def show_progress(done_count: int) -> None:
            update(completed=done_count, note=f"{done_count} of {len(chunks)} chunks")

        checkpoint, rejected_rows = execute(store, plan, chunks, engine, on_done=show_progress)
    if rejects:
        from pyarrow import parquet

        parquet.write_table(rejected_rows, rejects)
    _print_history(checkpoint)
    # The backfill saves the indices of array elements in all rows as metadata of the table of rejected rows.
    element_indices = decode_element_indices(rejected_rows)
    print_warning(element_indices.warning)  # if an element, such as {"id": "temp", …}, has moved within its array
    about_learning = _describe_learned(checkpoint, settings.store)
    about_model = _publish(settings, store, plan.fold_config)
    where_workers_begin = f"at {until}" if until else "at the earliest record"
    console().print(f"{about_learning}\n{about_model}; workers with start=backfill begin {where_workers_begin}")


def _make_plan(
    settings: WorkerSettings, file_options: FileOptions, timestamp_column: str | None, until: str | None,
    backfill_number: int,
) -> "BackfillPlan":  # fmt: skip
    """Return what is learned and how. Raises `SettingsError`.

    `until` is a time or offsets of partitions. `backfill_number` tells the backfills of a topic apart.
    """
    from streampca.backfill import BackfillPlan

    until_offsets = parse_offsets(until or "")  # None if `until` is a time
    until_ms = None if until_offsets else parse_time_ms(until, "until")
    if until_ms is not None and not timestamp_column:
        raise SettingsError("--until with a time needs --timestamp-column")
    return BackfillPlan(
        topic=settings.topic,
        fold_config=create_worker_config(settings).fold,
        files=file_options,
        timestamp_column=timestamp_column,
        until_ms=until_ms,
        until_offsets=until_offsets,
        number=backfill_number,
    )


def _describe_learned(checkpoint: Checkpoint, store: str) -> str:
    """Return how many vectors of the files were learned into the store, rejected and skipped."""
    stats = checkpoint.fold.stats
    rejected = ", ".join(f"{reason}: {count}" for reason, count in stats.rejected.items())
    return (
        f"{partition_name(checkpoint.partition)} is done: {stats.learned:,} vectors learned into "
        f"{store}; rejected: {rejected or 'none'}; skipped: {stats.skipped}"
    )


def _print_history(checkpoint: Checkpoint) -> None:
    """Print the times of the first and the last learned row. Warn of names of dimensions that occurred in no row."""
    stats = checkpoint.fold.stats
    if stats.first_ms >= 0:  # -1: the rows have no times
        first_time = iso_time(stats.first_ms)
        last_time = iso_time(stats.last_ms)
        console().print(f"history from {first_time} to {last_time}; times of the files without a zone are read as UTC")
    is_seen_by_dimension = checkpoint.fold.state.known_shares > 0
    print_warning(describe_unseen(checkpoint.names, is_seen_by_dimension, "the rows"))


def _publish(settings: WorkerSettings, store: Store, config: FoldConfig) -> str:
    """Publish a model with the learned vectors, unless a worker runs.

    Returns a sentence for the user, in which "them" means the learned vectors.
    """
    models = Models(store, settings.topic, settings.keep_models)
    reports = ProcessStatuses(store, settings.topic).all()
    # The other reports are from members of transform.
    workers = [report for report in reports if report.transform is None]
    if any(worker.is_running(time.time()) for worker in workers):
        if models.versions():
            return "no model contains them yet: a worker of the topic publishes it"
        return "no model yet: a worker of the topic publishes it"
    try:
        with threadpool_limits(1):  # for the same bits as from a worker
            Publisher(models, config, time.time).publish(Checkpoints(store, settings.topic))
    except PartitionsMissingError as error:
        return f"no model contains them yet: {error}"
    newest = models.newest()
    return f"model version {newest.version} contains them" if newest else "no model yet: it takes two vectors"
