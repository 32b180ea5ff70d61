"""One backfill into a store: pieces that are done are kept until all are, so that it can be interrupted."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from streampca.backfill.engines import Engine
from streampca.backfill.folding import REJECTS, Backfill, Part, merge
from streampca.backfill.pieces import Piece
from streampca.errors import InputError, SettingsError
from streampca.stores.base import Store
from streampca.stores.checkpoints import Checkpoints
from streampca.stream import compatibility
from streampca.stream.checkpoint import Checkpoint
from streampca.stream.partitions import backfill_partition, partition_name


def learn(
    store: Store, backfill: Backfill, pieces: Sequence[Piece], engine: Engine, on_done: Callable[[int], object]
) -> tuple[Checkpoint, Any]:
    """Fold the pieces, save the checkpoint of all, and return it with a table of the rejected rows.

    One that is saved already is returned; the rows that it has rejected are known as long as its parts are there.
    `on_done` is called with the number of pieces that are done. Raises `SettingsError` if there is another backfill of
    this number, or if a checkpoint of the store has other settings, and `InputError` if no row can be learned.
    """
    checkpoints = Checkpoints(store, backfill.topic)
    folder = f"checkpoints/{backfill.topic}/{partition_name(backfill_partition(backfill.number))}/parts"
    _refuse_other_settings(checkpoints, backfill)
    keys = {_key(piece, backfill): piece for piece in pieces}
    sources = hashlib.blake2b("".join(keys).encode(), digest_size=16).hexdigest()
    checkpoint = _saved(checkpoints, backfill, sources)
    if checkpoint is None:
        done = {path.rsplit("/", 1)[-1].removesuffix(".npz") for path in store.names(folder) if path.endswith(".npz")}
        on_done(count := len(done & keys.keys()))
        if todo := {key: piece for key, piece in keys.items() if key not in done}:
            for key, part in engine(todo, backfill):
                store.write(f"{folder}/{key}.parquet", part.rejects)
                store.write(f"{folder}/{key}.npz", part.fold)  # last: it says that both are there
                on_done(count := count + 1)
        checkpoint = _saved(checkpoints, backfill, sources) or merge(
            (Part(store.read(f"{folder}/{key}.npz"), b"") for key in keys), backfill, sources
        )
    rejects = _rejects(store, folder, list(keys))
    if not checkpoint.fold.stats.learned:
        raise InputError(
            f"no row was learned; the first: {next(iter(rejects['message'].to_pylist()), 'there is none')}"
        )
    if not _saved(checkpoints, backfill, sources):  # another process may have been quicker
        _refuse_other_settings(checkpoints, backfill)  # a worker may have saved its first checkpoint
        checkpoints.save(checkpoint)
    for key in keys:  # those of another process may still be needed
        for suffix in ("npz", "parquet"):
            store.delete(f"{folder}/{key}.{suffix}")
    return checkpoint, rejects


def _refuse_other_settings(checkpoints: Checkpoints, backfill: Backfill) -> None:
    """Raise `SettingsError` if workers could not merge the backfill with what they have learned."""
    for partition in checkpoints.partitions():
        if (newest := checkpoints.newest(partition, trusted=True)) and newest.fold.stats.learned:
            compatibility.refuse_other_settings(newest, backfill.fold)
            return  # all have the same


def _saved(checkpoints: Checkpoints, backfill: Backfill, sources: str) -> Checkpoint | None:
    """This backfill, if it is saved. Raises `SettingsError` if another one is."""
    partition = backfill_partition(backfill.number)
    saved = checkpoints.newest(partition)
    if saved and saved.sources != sources:
        raise SettingsError(
            f"{partition_name(partition)} of {backfill.topic} exists, of other files or columns: give another "
            f"--number, or `streampca backfill --remove {backfill.number}` first; no row may be learned twice"
        )
    return saved


def _rejects(store: Store, folder: str, keys: Sequence[str]) -> Any:
    present = set(store.names(folder))
    paths = [path for key in keys if (path := f"{folder}/{key}.parquet") in present]
    tables = [parquet.read_table(pa.BufferReader(store.read(path))) for path in paths]
    return pa.concat_tables(tables) if tables else REJECTS.empty_table()


def _key(piece: Piece, backfill: Backfill) -> str:
    """A name for the part of a piece: another one if the file, or what is learned of it, has changed."""
    content = (piece, backfill.fold.as_dict(), backfill.columns, backfill.timestamp_column, backfill.until)
    return hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()
