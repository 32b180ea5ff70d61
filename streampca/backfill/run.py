"""One backfill into a store: pieces that are done are kept until all are, so that it can be interrupted."""

import hashlib
import io
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from streampca.backfill.engines import Engine
from streampca.backfill.folding import Backfill, Part, merge
from streampca.backfill.pieces import Piece
from streampca.errors import InputError, SettingsError
from streampca.stores.base import Store
from streampca.stores.checkpoints import Checkpoints
from streampca.stream.checkpoint import Checkpoint
from streampca.stream.partitions import backfill_partition, partition_name


def learn(
    store: Store, backfill: Backfill, pieces: Sequence[Piece], engine: Engine, on_done: Callable[[int], object]
) -> tuple[Checkpoint, Any]:
    """Fold the pieces, save the checkpoint of all, and return it with a table of the rejected rows.

    `on_done` is called with the number of pieces that are done. Raises `SettingsError` if the backfill exists, and
    `InputError` if no row can be learned.
    """
    checkpoints, partition = Checkpoints(store, backfill.topic), backfill_partition(backfill.number)
    name = partition_name(partition)
    if checkpoints.offsets(partition):
        raise SettingsError(f"{name} of {backfill.topic} exists, and would be learned twice: give another --number")
    folder = f"checkpoints/{backfill.topic}/{name}/parts"
    keys = {_key(piece, backfill): piece for piece in pieces}
    done = {path.rsplit("/", 1)[-1].removesuffix(".npz") for path in store.names(folder) if path.endswith(".npz")}
    on_done(count := len(done & keys.keys()))
    if todo := {key: piece for key, piece in keys.items() if key not in done}:
        for key, part in engine(todo, backfill):
            store.write(f"{folder}/{key}.parquet", part.rejects)
            store.write(f"{folder}/{key}.npz", part.fold)  # last: it says that both are there
            on_done(count := count + 1)
    rejects = pa.concat_tables(
        parquet.read_table(io.BytesIO(store.read(f"{folder}/{_key(piece, backfill)}.parquet"))) for piece in pieces
    )
    checkpoint = merge((Part(store.read(f"{folder}/{key}.npz"), b"") for key in keys), backfill)
    if not checkpoint.fold.stats.learned:
        raise InputError(
            f"no row was learned; the first: {next(iter(rejects['message'].to_pylist()), 'there is none')}"
        )
    checkpoints.save(checkpoint)
    for path in store.names(folder):
        store.delete(path)
    return checkpoint, rejects


def _key(piece: Piece, backfill: Backfill) -> str:
    """A name for the part of a piece: another one if the file, or what is learned of it, has changed."""
    content = (piece, backfill.fold.as_dict(), backfill.columns, backfill.timestamp_column, backfill.until)
    return hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()
