"""`streampca backfill`: learns the past of a topic from files, on Dask."""

from collections.abc import Callable, Sequence
from pathlib import Path

from streampca.cli.console import console, progress
from streampca.cli.dead_letters import milliseconds
from streampca.cli.options import Given
from streampca.cli.worker import worker_config_of
from streampca.errors import SettingsError, StreampcaError
from streampca.fold.partitions import backfill_partition, partition_name
from streampca.process import logs
from streampca.settings.store import StoreSettings
from streampca.settings.worker import WorkerSettings
from streampca.stores.choice import store_of
from streampca.stores.models import Models


def run(
    given: Given, sources: Sequence[str], column: str, timestamp_column: str | None, until: str | None, number: int,
    scheduler: str | None, rejects: Path | None,
) -> None:  # fmt: skip
    """Learn the rows, save a checkpoint that every model will contain, and say what was learned."""
    settings = WorkerSettings.read(**given)
    logs.configure(settings.log_level)
    try:
        from streampca.backfill import Backfill, engines, run
        from streampca.files import pieces
    except ModuleNotFoundError as error:
        raise SettingsError(f"this needs {error.name}: pip install 'streampca[backfill]'") from None
    found = pieces.pieces_of(sources)
    backfill = Backfill(
        settings.topic,
        worker_config_of(settings).fold,
        pieces.columns_of(found[0], column),
        timestamp_column,
        None if offsets_in(until) else milliseconds(until, "until"),
        offsets_in(until),
        number,
    )
    if backfill.until_ms is not None and not timestamp_column:
        raise SettingsError("--until with a time needs --timestamp-column")
    with progress() as bar:
        task = bar.add_task("learning", total=len(found), rows=0, note="")
        checkpoint, rejected = run.learn(
            store_of(settings.store),
            backfill,
            found,
            engines.on_dask(scheduler),
            lambda done: bar.update(task, completed=done, note=f"{done} of {len(found)} pieces"),
        )
    if rejects:
        from pyarrow import parquet

        parquet.write_table(rejected, rejects)
    counts = ", ".join(f"{reason}: {count}" for reason, count in checkpoint.fold.stats.rejected.items())
    console().print(
        f"{partition_name(checkpoint.partition)} is done: {checkpoint.fold.stats.learned:,} rows learned into "
        f"{settings.store}; rejected: {counts or 'none'}\n"
        f"the next model of {settings.topic} contains them; workers with start=backfill begin "
        f"{f'at {until}' if until else 'at the earliest record'}"
    )


def remove(given: Given, number: int, ask: Callable[[str], bool]) -> None:
    """Delete a backfill, and the models that contain it, if `ask`, which gets a question, agrees.

    Raises `SettingsError` if there is none.
    """
    settings = StoreSettings.read(**given)
    store, name = store_of(settings.store), partition_name(backfill_partition(number))
    folder = f"checkpoints/{settings.topic}/{name}"
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


def offsets_in(until: str | None) -> dict[int, int] | None:
    """The offsets in `0:1200,1:1177`; None if it is something else."""
    pairs = [part.split(":") for part in (until or "").split(",")]
    if not all(len(pair) == 2 and all(each.strip().isdecimal() for each in pair) for pair in pairs):
        return None
    return {int(partition): int(offset) for partition, offset in pairs}
