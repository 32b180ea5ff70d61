"""Executes a backfill into a store.

The parts of finished chunks are kept until all are merged, so that an interrupted backfill continues where it was.
"""

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
    """Fold the chunks, save the checkpoint of their merge, and return it with a table of the rejected rows.

    If the same backfill was saved before, return its checkpoint and table. `on_done` is called with the number of
    finished chunks. Raises `SettingsError` if a different backfill has this number, or if a checkpoint of the store has
    other settings; raises `InputError` if no row can be learned.
    """
    checkpoints = Checkpoints(store, plan.topic)
    partition = backfill_partition(plan.number)
    folder = folder_of(plan.topic, partition)
    _refuse_other_settings(checkpoints, plan)
    chunk_by_key = {_make_chunk_key(chunk, plan): chunk for chunk in chunks}
    sources = hashlib.blake2b("".join(chunk_by_key).encode(), digest_size=16).hexdigest()
    _refuse_other_sources(store, folder, plan, sources)
    checkpoint = checkpoints.newest(partition)
    if checkpoint is None:
        _fold_missing_chunks(store, f"{folder}/parts", chunk_by_key, plan, engine, on_done)
        try:
            checkpoint = _merge_and_save(store, folder, list(chunk_by_key), plan, sources)
        except FileNotFoundError:  # another process has learned the same files, saved them and deleted the parts
            checkpoint = checkpoints.newest(partition)
    if checkpoint is None:
        raise StoreError(f"parts of {folder} were deleted while they were merged: run it again")
    rejects = _read_table(store, f"{folder}/rejects.parquet")
    for key in chunk_by_key:  # parts with other keys belong to another process
        for suffix in ("npz", "parquet"):
            store.delete(f"{folder}/parts/{key}.{suffix}")
    return checkpoint, rejects


def with_names(store: Store, plan: BackfillPlan, chunks: Sequence[Chunk]) -> tuple[BackfillPlan, Rows]:
    """Return the plan with names of the dimensions, and the opened first file.

    The names are those of the plan, otherwise those of the topic's checkpoints, otherwise those of the first file.
    Raises `InputError`.
    """
    config = plan.fold_config
    names = config.names or _names_of_checkpoints(Checkpoints(store, plan.topic))
    first_file = open_rows(chunks[0].path, plan.options._replace(names=names))
    config = replace(config, names=names or first_file.names)
    return replace(plan, fold_config=config), first_file


def _names_of_checkpoints(checkpoints: Checkpoints) -> list[str] | None:
    """Return the dimensions' names in the first checkpoint that has some; all checkpoints of a topic have the same."""
    for partition in checkpoints.partitions():
        checkpoint = checkpoints.newest(partition)
        if checkpoint and checkpoint.names:
            return checkpoint.names
    return None


def _fold_missing_chunks(
    store: Store, folder: str, chunk_by_key: Mapping[str, Chunk], plan: BackfillPlan, engine: Engine,
    on_done: Callable[[int], object],
) -> None:  # fmt: skip
    """Fold the chunks that have no part in the folder yet, and save their parts."""
    paths = [path for path in store.names(folder) if path.endswith(".npz")]
    saved_keys = {path.rsplit("/", 1)[-1].removesuffix(".npz") for path in paths}
    missing = {key: chunk for key, chunk in chunk_by_key.items() if key not in saved_keys}
    done_count = len(chunk_by_key) - len(missing)
    on_done(done_count)
    if not missing:
        return  # an engine would start its processes for nothing
    for key, part in engine(missing, plan):
        store.write(f"{folder}/{key}.parquet", part.rejects_bytes)
        store.write(f"{folder}/{key}.npz", part.checkpoint_bytes)  # last, since it says that both files are there
        done_count += 1
        on_done(done_count)


def _merge_and_save(store: Store, folder: str, keys: Sequence[str], plan: BackfillPlan, sources: str) -> Checkpoint:
    """Merge the parts and save their checkpoint.

    Raises `FileNotFoundError` if a part was deleted, and the errors of `execute`.
    """
    checkpoint = merge((Part(store.read(f"{folder}/parts/{key}.npz"), b"") for key in keys), plan)
    rejects = pa.concat_tables([_read_table(store, f"{folder}/parts/{key}.parquet") for key in keys])
    if not checkpoint.fold.stats.learned:
        raise InputError(f"no row was learned: {_explain_nothing_learned(checkpoint.fold.position, rejects)}")
    checkpoints = Checkpoints(store, plan.topic)
    _refuse_other_settings(checkpoints, plan)  # a second time, since folding may have taken hours
    # If several processes execute backfills of this number, the first to create this file keeps the number.
    store.create(f"{folder}/sources", sources.encode())
    _refuse_other_sources(store, folder, plan, sources)
    out = pa.BufferOutputStream()
    parquet.write_table(rejects, out)
    store.write(f"{folder}/rejects.parquet", out.getvalue().to_pybytes())
    checkpoints.save(checkpoint)  # last, since it says that everything else is there
    return checkpoint


def _explain_nothing_learned(row_count: int, rejects: Any) -> str:
    """Say why none of these rows was learned."""
    if row_count == 0:
        return "the files have no rows"
    skipped = f"{row_count - len(rejects):,} are not before --until or hold no vector"
    first_reject = f", the first: {rejects['message'][0]}" if len(rejects) else ""
    return f"of {row_count:,} rows {skipped}, {len(rejects):,} were rejected{first_reject}"


def _read_table(store: Store, name: str) -> Any:
    # A thread of Arrow that releases the bytes later may abort the process at its exit, so none is used.
    return parquet.ParquetFile(pa.BufferReader(store.read(name))).read(use_threads=False)


def _refuse_other_settings(checkpoints: Checkpoints, plan: BackfillPlan) -> None:
    """Raise `SettingsError` if workers could not merge the backfill with what they have learned."""
    for partition in checkpoints.partitions():
        newest = checkpoints.newest(partition)
        if newest and newest.fold.stats.learned:
            # The field tells where the numbers are in the topic's records; files have columns instead.
            config = replace(plan.fold_config, field=newest.settings["field"])
            newest.refuse_other_settings(config)


def _refuse_other_sources(store: Store, folder: str, plan: BackfillPlan, sources: str) -> None:
    """Raise `SettingsError` if a backfill of other files or columns has this number."""
    names = set(store.names(folder)) - {f"{folder}/parts"}
    if not names:
        return
    sources_file = f"{folder}/sources"
    if sources_file not in names or store.read(sources_file).decode() != sources:
        raise SettingsError(
            f"{partition_name(backfill_partition(plan.number))} of {plan.topic} exists, of other files or "
            f"columns: give another --number, or `streampca backfill --remove {plan.number}` first; no row may be "
            "learned twice"
        )


def _make_chunk_key(chunk: Chunk, plan: BackfillPlan) -> str:
    """Return the name of a chunk's part. It changes if the file or the settings of the backfill change."""
    config = plan.fold_config
    content = (tuple(chunk), config.as_dict(), config.names, plan.files, plan.timestamp_column, plan.until)
    return hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()
