"""Executes a backfill into a store: chunks that are done are kept until all are, so that it can be interrupted."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from streampca.backfill.engines import Engine
from streampca.backfill.folding import BackfillPlan, Part, merge
from streampca.errors import InputError, SettingsError, StoreError
from streampca.files import open_rows
from streampca.files.chunks import Chunk
from streampca.files.rows import Rows
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.partitions import backfill_partition, partition_name
from streampca.stores.base import Store
from streampca.stores.checkpoints import Checkpoints, folder_of


def execute(
    store: Store, plan: BackfillPlan, chunks: Sequence[Chunk], engine: Engine, on_done: Callable[[int], object]
) -> tuple[Checkpoint, Any]:
    """Fold the chunks, save the checkpoint of all, and return it with a table of the rejected rows.

    One that is saved already is returned. `on_done` is called with the number of chunks that are done. Raises
    `SettingsError` if there is another backfill of this number, or if a checkpoint of the store has other settings, and
    `InputError` if no row can be learned.
    """
    checkpoints = Checkpoints(store, plan.topic)
    folder = folder_of(plan.topic, backfill_partition(plan.number))
    _refuse_other_settings(checkpoints, plan)
    keys = {_key(chunk, plan): chunk for chunk in chunks}
    sources = hashlib.blake2b("".join(keys).encode(), digest_size=16).hexdigest()
    _refuse_other_sources(store, folder, plan, sources)
    checkpoint = checkpoints.newest(backfill_partition(plan.number))
    if checkpoint is None:
        _fold(store, f"{folder}/parts", keys, plan, engine, on_done)
        try:
            checkpoint = _save(store, folder, list(keys), plan, sources)
        except FileNotFoundError:  # another process has learned the same files, saved them and deleted the parts
            checkpoint = checkpoints.newest(backfill_partition(plan.number))
    if checkpoint is None:
        raise StoreError(f"parts of {folder} were deleted while they were merged: run it again")
    rejects = _table(store, f"{folder}/rejects.parquet")
    for key in keys:  # others belong to another process
        for suffix in ("npz", "parquet"):
            store.delete(f"{folder}/parts/{key}.{suffix}")
    return checkpoint, rejects


def with_names(store: Store, plan: BackfillPlan, chunks: Sequence[Chunk]) -> tuple[BackfillPlan, Rows]:
    """The plan with names of the dimensions, and the first file.

    The names are the plan's, or what the topic's checkpoints have, or those of the first file. Raises `InputError`.
    """
    checkpoints, config = Checkpoints(store, plan.topic), plan.fold_config
    saved = (checkpoints.newest(partition) for partition in checkpoints.partitions())
    names = config.names or next((checkpoint.names for checkpoint in saved if checkpoint and checkpoint.names), None)
    first = open_rows(chunks[0].path, plan.options._replace(names=names))
    return replace(plan, fold_config=replace(config, names=names or first.names)), first


def _fold(
    store: Store, folder: str, keys: Mapping[str, Chunk], plan: BackfillPlan, engine: Engine,
    on_done: Callable[[int], object],
) -> None:  # fmt: skip
    """Save the parts of the chunks that have none yet."""
    done = {path.rsplit("/", 1)[-1].removesuffix(".npz") for path in store.names(folder) if path.endswith(".npz")}
    on_done(count := len(done & keys.keys()))
    if todo := {key: chunk for key, chunk in keys.items() if key not in done}:
        for key, part in engine(todo, plan):
            store.write(f"{folder}/{key}.parquet", part.rejects_bytes)
            store.write(f"{folder}/{key}.npz", part.checkpoint_bytes)  # last: it says that both are there
            on_done(count := count + 1)


def _save(store: Store, folder: str, keys: Sequence[str], plan: BackfillPlan, sources: str) -> Checkpoint:
    """Merge the parts. Raises `FileNotFoundError` if one is gone, and otherwise as `execute`."""
    checkpoint = merge((Part(store.read(f"{folder}/parts/{key}.npz"), b"") for key in keys), plan)
    rejects = pa.concat_tables([_table(store, f"{folder}/parts/{key}.parquet") for key in keys])
    if not checkpoint.fold.stats.learned:
        raise InputError(f"no row was learned: {_reasons(checkpoint.fold.position, rejects)}")
    checkpoints = Checkpoints(store, plan.topic)
    _refuse_other_settings(checkpoints, plan)  # again: folding may have taken hours
    store.create(f"{folder}/sources", sources.encode())  # of several processes, the files of one get the number
    _refuse_other_sources(store, folder, plan, sources)
    parquet.write_table(rejects, out := pa.BufferOutputStream())
    store.write(f"{folder}/rejects.parquet", out.getvalue().to_pybytes())
    checkpoints.save(checkpoint)  # last: it says that all is there
    return checkpoint


def _reasons(rows: int, rejects: Any) -> str:
    """Why none of these rows was learned."""
    if not rows:
        return "the files have no rows"
    first = f", the first: {rejects['message'][0]}" if len(rejects) else ""
    later = f"{rows - len(rejects):,} are not before --until or hold no vector"
    return f"of {rows:,} rows {later}, {len(rejects):,} were rejected{first}"


def _table(store: Store, name: str) -> Any:
    # Without threads: one that releases the bytes later may abort the process at its exit.
    return parquet.ParquetFile(pa.BufferReader(store.read(name))).read(use_threads=False)


def _refuse_other_settings(checkpoints: Checkpoints, plan: BackfillPlan) -> None:
    """Raise `SettingsError` if workers could not merge the backfill with what they have learned."""
    for partition in checkpoints.partitions():
        if (newest := checkpoints.newest(partition)) and newest.fold.stats.learned:
            config = replace(plan.fold_config, field=newest.settings["field"])  # that of the topic's records
            newest.refuse_other_settings(config)


def _refuse_other_sources(store: Store, folder: str, plan: BackfillPlan, sources: str) -> None:
    """Raise `SettingsError` if the number stands for other files or columns."""
    names, name = set(store.names(folder)) - {f"{folder}/parts"}, f"{folder}/sources"
    if names and (name not in names or store.read(name).decode() != sources):
        raise SettingsError(
            f"{partition_name(backfill_partition(plan.number))} of {plan.topic} exists, of other files or "
            f"columns: give another --number, or `streampca backfill --remove {plan.number}` first; no row may be "
            "learned twice"
        )


def _key(chunk: Chunk, plan: BackfillPlan) -> str:
    """A name for the part of a chunk: another one if the file, or what is learned of it, has changed."""
    config = plan.fold_config
    content = (tuple(chunk), config.as_dict(), config.names, plan.files, plan.timestamp_column, plan.until)
    return hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()
