"""`streampca backfill`: learns the past of a topic from files."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from threadpoolctl import threadpool_limits

from streampca.cli.console import console, iso_time, print_notes, progress
from streampca.cli.options import parse_time_ms
from streampca.cli.worker_config import create_worker_config
from streampca.errors import SettingsError, StreampcaError, naming_the_extra
from streampca.files.columns import FileOptions
from streampca.fold.fold import FoldConfig
from streampca.fold.partitions import backfill_partition, offsets_in, partition_name
from streampca.settings.commands import WorkerSettings
from streampca.settings.process import StoreSettings
from streampca.stores.base import Store
from streampca.stores.checkpoints import Checkpoints, folder_of
from streampca.stores.choice import open_store
from streampca.stores.models import Models
from streampca.stores.pins import Pins
from streampca.stores.process_status import ProcessStatuses
from streampca.worker.publisher import Publisher


def run(
    settings: WorkerSettings, sources: Sequence[str], files: FileOptions, timestamp_column: str | None,
    until: str | None, number: int, scheduler: str | None, rejects: Path | None,
) -> None:  # fmt: skip
    """Learn the rows, save them as a checkpoint that every later model contains, and print what was learned."""
    with naming_the_extra("this", "dask" if scheduler else "backfill"):
        from streampca.backfill import BackfillPlan, engines
        from streampca.backfill.execute import execute, with_names
        from streampca.files.chunks import chunks_of

        engine = engines.on_dask(scheduler) if scheduler else engines.on_processes()
    chunks = chunks_of(sources)
    until_offsets = offsets_in(until or "")
    until_ms = None if until_offsets else parse_time_ms(until, "until")
    plan = BackfillPlan(
        settings.topic, create_worker_config(settings).fold, files, timestamp_column, until_ms, until_offsets, number
    )
    if plan.until_ms is not None and not timestamp_column:
        raise SettingsError("--until with a time needs --timestamp-column")
    store = open_store(settings.store)
    plan, first = with_names(store, plan, chunks)
    print_notes(first)
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
    published = _publish(settings, store, plan.fold_config)
    start = f"at {until}" if until else "at the earliest record"
    console().print(
        f"{partition_name(checkpoint.partition)} is done: {stats.learned:,} vectors learned into "
        f"{settings.store}; rejected: {counts or 'none'}; skipped: {stats.skipped}\n"
        f"{published}; workers with start=backfill begin {start}"
    )


def _publish(settings: WorkerSettings, store: Store, config: FoldConfig) -> str:
    """Publish a model with the backfill unless a worker will; return a text that says which model contains it."""
    models = Models(store, settings.topic, settings.keep_models)
    reports = ProcessStatuses(store, settings.topic).all()
    if any(report.transform is None and report.is_running(time.time()) for report in reports):
        if models.versions():
            return "no model contains them yet: a worker of the topic publishes it"
        return "no model yet: a worker of the topic publishes it"
    with threadpool_limits(1):  # so that the model has the same bits as from a worker
        Publisher(models, config, time.time).publish(Checkpoints(store, settings.topic))
    newest = models.newest()
    return f"model version {newest.version} contains them" if newest else "no model yet: it takes two vectors"


def remove(settings: StoreSettings, number: int, ask: Callable[[str], bool]) -> None:
    """Delete a backfill and the models that contain it, if `ask` agrees. Raises `SettingsError` if there is none."""
    store = open_store(settings.store)
    partition = backfill_partition(number)
    name = partition_name(partition)
    folder = folder_of(settings.topic, partition)
    checkpoints = [path for path in store.names(folder) if path.endswith(".npz")]
    others = [path for path in store.names(folder) if not path.endswith((".npz", "/parts"))]
    others += store.names(f"{folder}/parts")  # only an interrupted backfill has parts
    if not checkpoints + others:
        raise SettingsError(f"{settings.store} has no {name} of {settings.topic}")
    models = Models(store, settings.topic)
    versions = models.containing(partition)
    pins = [f"{pin} ({version})" for pin, version in Pins(store, settings.topic).all().items() if version in versions]
    pinned = f", among them what is pinned as {' and '.join(pins)}" if pins else ""
    what = f"{name} of {settings.topic}, and the {len(versions)} models that contain it{pinned}"
    if not ask(f"Delete {what}? Stop the workers first"):
        raise StreampcaError("nothing was changed")
    for path in checkpoints:
        store.delete(path)
    versions = models.containing(partition)  # read again: workers may have published until they stopped
    models.delete(versions)  # otherwise they would stay the newest: later models have fewer messages, so lower versions
    for path in others:  # last: if this command is killed before, it finds the backfill when it is run again
        store.delete(path)
    console().print(f"deleted {name} of {settings.topic}, and {len(versions)} models that contained it")
