"""Folds of rows, wherever they are, and their merger. The parts are bytes, so that any engine can move them:

parts = [fold_batches(batches, plan) for batches in chunks]  # in any process and order
checkpoint = merge(parts, plan)  # in the order of the chunks
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import parquet
from threadpoolctl import threadpool_limits

from streampca.errors import InputError
from streampca.fold import checkpoint as files
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.merging import FoldMerger
from streampca.fold.partitions import backfill_partition
from streampca.formats import arrow
from streampca.formats.batch import Batch, Decoded, Reject
from streampca.formats.judge import Judge
from streampca.formats.packing import VectorError

REJECTS = pa.schema({"chunk": pa.string(), "row": pa.int64(), "reason": pa.string(), "message": pa.string()})


@dataclass(frozen=True)
class BackfillPlan:
    """Rows to learn, and how."""

    topic: str
    fold_config: FoldConfig  # the worker's
    columns: tuple[str, ...]  # one of lists of d numbers, or d of numbers
    timestamp_column: str | None = None
    until_ms: int | None = None  # rows from this time on are the topic's
    until_offsets: Mapping[int, int] | None = None  # or, of columns `partition` and `offset`, from these offsets on
    number: int = 0  # distinguishes the backfills of a topic

    @property
    def until(self) -> str:
        """End of the backfill, as in `Checkpoint.until`."""
        offsets = (f"{partition}:{offset}" for partition, offset in sorted((self.until_offsets or {}).items()))
        return str(self.until_ms) if self.until_ms is not None else ",".join(offsets)

    @property
    def read(self) -> list[str]:
        times = [self.timestamp_column] if self.timestamp_column else []
        return [*self.columns, *times, *(["partition", "offset"] if self.until_offsets else [])]

    def checkpoint(self, fold: Fold) -> Checkpoint:
        partition = backfill_partition(self.number)
        config = self.fold_config
        return Checkpoint(self.topic, "", partition, fold, config.as_dict(), self.until, config.names)


class Part(NamedTuple):
    """The fold of a chunk as a checkpoint's file, and its rejected rows as a Parquet file."""

    checkpoint_bytes: bytes
    rejects_bytes: bytes


def fold_batches(batches: Iterable[Any], plan: BackfillPlan, name: str = "") -> Part:
    """Learn the rows of record batches; where they are cut changes no bit. Raises `InputError` for a wrong column."""
    learning = plan.fold_config.learning
    judge, fold, rejects, start = Judge.of(learning), Fold.empty(learning), list[Any](), 0
    with threadpool_limits(1):  # the same bits everywhere
        for whole in batches:
            history, unclear = _history(whole, plan)
            batch = whole if len(history) == len(whole) else whole.take(pa.array(history))
            decoded = _decoded(batch, plan, judge)
            unfit = [replace(reject, index=int(history[reject.index])) for reject in decoded.rejects]
            unfit += [Reject(int(row), "no_position", "it may be history or the topic's") for row in unclear]
            times = _times(batch, plan)[decoded.indices]
            decoded = decoded._replace(rejects=unfit)
            fold = fold.take(Batch(decoded, times, (), start + len(whole)), plan.fold_config)[0]
            rejects += [(name, start + reject.index, reject.reason, reject.message) for reject in sorted(unfit)]
            start += len(whole)
        fold = replace(fold, position=start, state=fold.provisional(learning)).without_pending()
    out = pa.BufferOutputStream()  # a BytesIO that another thread of Arrow's closes may abort the process at its exit
    columns = [[row[i] for row in rejects] for i in range(len(REJECTS))]
    parquet.write_table(pa.table(columns, schema=REJECTS), out)
    return Part(files.encode(plan.checkpoint(fold)), out.getvalue().to_pybytes())


def merge(parts: Iterable[Part], plan: BackfillPlan) -> Checkpoint:
    """The checkpoint of all parts, in their order; one is in memory at a time."""
    folds, position = FoldMerger(plan.fold_config), 0
    for part in parts:
        fold = files.decode(part.checkpoint_bytes).fold
        folds.append(fold)
        position += fold.position
    return plan.checkpoint(folds.fold(position))


def _history(batch: Any, plan: BackfillPlan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows that are not the topic's, and those that do not say it."""
    if missing := set(plan.read) - set(batch.schema.names):
        raise InputError(f"there is no column {min(missing)}; there are {', '.join(batch.schema.names)}")
    rows = np.arange(len(batch))
    if plan.until_ms is not None:
        is_clear = _is_valid(batch.column(str(plan.timestamp_column)))
        return rows[is_clear & (_times(batch, plan) < plan.until_ms)], rows[~is_clear]
    if plan.until_offsets:
        columns = [batch.column(name) for name in ("partition", "offset")]
        partitions, offsets = (pc.fill_null(column.cast(pa.int64()), 0).to_numpy() for column in columns)
        is_clear = np.logical_and(*map(_is_valid, columns))
        ends = np.array([plan.until_offsets.get(partition, 0) for partition in partitions.tolist()], np.int64)
        return rows[is_clear & (offsets < ends)], rows[~is_clear]
    return rows, rows[:0]


def _is_valid(column: Any) -> NDArray[np.bool_]:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False))


def _times(batch: Any, plan: BackfillPlan) -> NDArray[np.int64]:
    """The time of each row in milliseconds since 1970; -1: unknown."""
    if plan.timestamp_column is None:
        return np.full(len(batch), -1, np.int64)
    column = batch.column(plan.timestamp_column)
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    elif not pa.types.is_integer(column.type):
        raise InputError(f"column {plan.timestamp_column} holds {column.type}, not times or milliseconds")
    return np.asarray(pc.fill_null(column, -1).to_numpy(zero_copy_only=False), np.int64)


def _decoded(batch: Any, plan: BackfillPlan, judge: Judge) -> Decoded:
    """Decode the rows of a batch; null entries are NaN."""
    d, rows, rejects = plan.fold_config.learning.dimensions, np.arange(len(batch)), list[Reject]()
    if len(plan.columns) == 1:
        rejects = list(_misfits(batch.column(plan.columns[0]), d))
        rows = np.setdiff1d(rows, [reject.index for reject in rejects], assume_unique=True)
    fitting = batch.take(pa.array(rows)) if rejects else batch
    try:
        vectors = arrow.vectors_of(fitting, plan.columns, d, impute=True)
    except VectorError as error:
        raise InputError(f"column {plan.columns[0]}: {error}" if len(plan.columns) == 1 else str(error)) from None
    return judge.checked(vectors, rows, np.ones(len(rows), np.int64), rejects)


def _misfits(column: Any, d: int) -> Iterator[Reject]:
    """The rows of a column of lists that are null, which is no error, or have another length."""
    if not arrow.is_list(column.type):
        return
    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(lengths != d):
        missing = lengths[row] < 0
        text = "the row is null" if missing else f"{lengths[row]} numbers, not {d}"
        yield Reject(int(row), "no_value" if missing else "wrong_length", text)
