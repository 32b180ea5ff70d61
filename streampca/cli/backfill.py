"""`streampca backfill`: learns the past of a topic from files."""

from collections.abc import Callable, Sequence
from pathlib import Path

from streampca.cli.console import console, iso_time, progress
from streampca.cli.files import report
from streampca.cli.options import milliseconds
from streampca.cli.worker import create_worker_config
from streampca.errors import SettingsError, StreampcaError, naming_the_extra
from streampca.files.columns import FileOptions
from streampca.fold.partitions import backfill_partition, offsets_in, partition_name
from streampca.settings.commands import WorkerSettings
from streampca.settings.process import StoreSettings
from streampca.stores.checkpoints import folder_of
from streampca.stores.choice import open_store
from streampca.stores.models import Models


def run(
    settings: WorkerSettings, sources: Sequence[str], files: FileOptions, timestamp_column: str | None,
    until: str | None, number: int, scheduler: str | None, rejects: Path | None,
) -> None:  # fmt: skip
    """Learn the rows, save a checkpoint that every model will contain, and say what was learned."""
    with naming_the_extra("this", "dask" if scheduler else "backfill"):
        from streampca.backfill import BackfillPlan, engines
        from streampca.backfill.execute import execute, with_names
        from streampca.files.chunks import chunks_of

        engine = engines.on_dask(scheduler) if scheduler else engines.on_processes()
    chunks = chunks_of(sources)
    plan = BackfillPlan(
        settings.topic,
        create_worker_config(settings).fold,
        files,
        timestamp_column,
        None if offsets_in(until or "") else milliseconds(until, "until"),
        offsets_in(until or ""),
        number,
    )
    if plan.until_ms is not None and not timestamp_column:
        raise SettingsError("--until with a time needs --timestamp-column")
    store = open_store(settings.store)
    plan, first = with_names(store, plan, chunks)
    report(first)
    with progress("learning", len(chunks)) as update:
        checkpoint, rejected = execute(
            store,
            plan,
            chunks,
            engine,
            lambda done: update(completed=done, note=f"{done} of {len(chunks)} chunks"),
        )
    if rejects:
        from pyarrow import parquet

        parquet.write_table(rejected, rejects)
    stats = checkpoint.fold.stats
    counts = ", ".join(f"{reason}: {count}" for reason, count in stats.rejected.items())
    if stats.first_ms >= 0:
        console().print(f"history from {iso_time(stats.first_ms)} to {iso_time(stats.last_ms)}")
    console().print(
        f"{partition_name(checkpoint.partition)} is done: {stats.learned:,} vectors learned into "
        f"{settings.store}; rejected: {counts or 'none'}; skipped: {stats.skipped}\n"
        f"the next model of {settings.topic} contains them; workers with start=backfill begin "
        f"{f'at {until}' if until else 'at the earliest record'}"
    )


def remove(settings: StoreSettings, number: int, ask: Callable[[str], bool]) -> None:
    """Delete a backfill and the models that contain it, if `ask` agrees. Raises `SettingsError` if there is none."""
    store, name = open_store(settings.store), partition_name(backfill_partition(number))
    folder = folder_of(settings.topic, backfill_partition(number))
    checkpoints = [path for path in store.names(folder) if path.endswith(".npz")]
    others = [path for path in store.names(folder) if not path.endswith((".npz", "/parts"))]
    others += store.names(f"{folder}/parts")  # of one that was interrupted
    if not checkpoints + others:
        raise SettingsError(f"{settings.store} has no {name} of {settings.topic}")
    if not ask(f"Delete {name} of {settings.topic}, and the models that contain it? Stop the workers first"):
        raise StreampcaError("nothing was changed")
    for path in checkpoints:
        store.delete(path)
    models = Models(store, settings.topic).delete_with(backfill_partition(number))  # they have higher versions
    for path in others:  # last, so that one that is killed can be run again
        store.delete(path)
    console().print(f"deleted {name} of {settings.topic}, and {models} models that contained it")
