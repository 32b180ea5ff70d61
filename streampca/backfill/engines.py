"""Folds pieces on Dask or on Spark: the same bytes on both, however many workers there are."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import pyarrow as pa

from streampca.backfill.folding import Backfill, Part, fold_batches
from streampca.errors import InputError
from streampca.files.pieces import Piece, read
from streampca.process.memory import keep_freed_memory

Folded = Iterator[tuple[str, Part]]
Engine = Callable[[Mapping[str, Piece], Backfill], Folded]
"""Folds named pieces, and yields the parts as they are done."""

_SPARK_SCHEMA = "name string, fold binary, rejects binary"


def fold_piece(piece: Piece, backfill: Backfill) -> Part:
    """Fold the rows of a piece. Raises `InputError`."""
    keep_freed_memory()  # Dask makes its processes return it, and then a quarter of the time goes to the system
    return fold_batches(read(piece, backfill.read, backfill.columns), backfill, f"{piece.path}#{piece.part}")


def on_dask(scheduler: str | None = None, workers: int | None = None) -> Engine:
    """On the cluster with this scheduler (`tcp://host:port`), or on new processes of this machine, one a core."""

    def fold(pieces: Mapping[str, Piece], backfill: Backfill) -> Folded:
        from dask import distributed

        dask: Any = distributed  # it has no types
        logging.getLogger("distributed").setLevel(logging.WARNING)  # else each connection has lines in our log
        options = {"dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}  # errors are raised, too
        with ExitStack() as opened:
            place = scheduler or opened.enter_context(
                dask.LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, **options)
            )
            client = opened.enter_context(dask.Client(place))
            names = {client.submit(fold_piece, piece, backfill, pure=False): name for name, piece in pieces.items()}
            for future in dask.as_completed(list(names)):
                name = names.pop(future)
                try:
                    part = future.result()
                except dask.KilledWorker:
                    path, rows = pieces[name].path, pieces[name].part
                    raise InputError(
                        f"{path}#{rows}: each process that folded it died: is there memory enough for one a core, and "
                        "does nothing write to the file? Then run it again, or name a smaller cluster by --scheduler"
                    ) from None
                yield name, part
                future.release()

    return fold


def on_spark(session: Any) -> Engine:
    """On a Spark session, whose executors have streampca installed."""

    def fold(pieces: Mapping[str, Piece], backfill: Backfill) -> Folded:
        rows = [(name, *piece) for name, piece in pieces.items()]
        frame = session.createDataFrame(rows, "name string, path string, size long, changed_ns long, part long")
        spread = frame.repartition(len(rows), "name")
        for row in spread.mapInArrow(partial(_fold_rows, backfill=backfill), _SPARK_SCHEMA).toLocalIterator():
            yield row.name, Part(bytes(row.fold), bytes(row.rejects))

    return fold


def _fold_rows(batches: Iterator[Any], backfill: Backfill) -> Iterator[Any]:
    """For `mapInArrow`: rows that name pieces become rows that hold their parts."""
    for batch in batches:
        for name, *piece in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            part = fold_piece(Piece(*piece), backfill)
            yield pa.record_batch([[name], [part.fold], [part.rejects]], ["name", "fold", "rejects"])
