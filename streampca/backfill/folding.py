"""Folds of rows, wherever they are, and their merger. The parts are bytes, so that any engine can move them:

parts = [fold_batches(batches, plan) for batches in chunks]  # in any process and order
checkpoint = merge(parts, plan)  # in the order of the chunks
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc, parquet
from threadpoolctl import threadpool_limits

from streampca.errors import InputError
from streampca.files.arrow import batch_of, columns_of
from streampca.files.columns import FileOptions
from streampca.files.rows import FileBatch, input_errors
from streampca.fold.checkpoint import Checkpoint, decode, encode
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.merging import FoldMerger
from streampca.fold.partitions import backfill_partition
from streampca.formats.epoch import describe_odd_timestamp, find_odd_timestamps
from streampca.formats.errors import VectorError
from streampca.formats.judge import Judge
from streampca.formats.record import Batch, Reject

_TEXTS = (pa.int64(), *(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in ("UTC", None)))
_UNCLEAR = "it may be history or the topic's"
REJECTS = pa.schema({"chunk": pa.string(), "row": pa.int64(), "reason": pa.string(), "message": pa.string()})


@dataclass(frozen=True)
class BackfillPlan:
    """Rows to learn, and how."""

    topic: str
    fold_config: FoldConfig  # the worker's
    files: FileOptions  # where the numbers are
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
    def options(self) -> FileOptions:
        """What is read of the files."""
        others = [self.timestamp_column, *(["partition", "offset"] if self.until_offsets else [])]
        return self.files._replace(
            dimensions=self.fold_config.learning.dimensions, names=self.fold_config.names, impute=True,
            others=[name for name in others if name],
        )  # fmt: skip

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
    return fold_rows((_decoded(batch, plan) for batch in batches), plan, name)


def fold_rows(batches: Iterable[FileBatch], plan: BackfillPlan, name: str) -> Part:
    """Learn the rows of files, as `fold_batches`."""
    learning = plan.fold_config.learning
    judge, fold, rejects, start = Judge.of(learning), Fold.empty(learning), list[Any](), 0
    with threadpool_limits(1):  # the same bits everywhere
        for found, _, others in batches:
            vectors, counts = found.vectors, found.counts
            columns = {
                name: pa.array([None if cell == "" else cell for cell in column])
                if isinstance(column, np.ndarray) else column
                for name, column in others.items()
            }  # fmt: skip
            time = plan.timestamp_column
            times = in_milliseconds(columns[time], time) if time else np.full(len(counts), -1)
            is_history, is_unclear = _history(columns, times, plan)
            chosen = np.flatnonzero(is_history & (counts > 0))
            vectors = vectors if is_history.all() else vectors[np.repeat(is_history, counts)]
            unfit = [Reject(row, error.reason, str(error)) for row, error in found.errors if is_history[row]]
            decoded = judge.reject_bad(vectors, chosen, counts[chosen], unfit)
            unclear = np.flatnonzero(is_unclear).tolist()
            unfit = [*decoded.rejects, *(Reject(row, "no_position", _UNCLEAR) for row in unclear)]
            decoded = decoded._replace(rejects=unfit)
            fold = fold.take(Batch(decoded, times[decoded.indices], (), start + len(counts)), plan.fold_config)[0]
            rejects += [(name, start + reject.index, reject.reason, reject.message) for reject in sorted(unfit)]
            start += len(counts)
        fold = replace(fold, position=start, state=fold.provisional(learning)).without_pending()
    out = pa.BufferOutputStream()  # a BytesIO that another thread of Arrow's closes may abort the process at its exit
    cells = [[row[i] for row in rejects] for i in range(len(REJECTS))]
    parquet.write_table(pa.table(cells, schema=REJECTS), out)
    return Part(encode(plan.checkpoint(fold)), out.getvalue().to_pybytes())


def merge(parts: Iterable[Part], plan: BackfillPlan) -> Checkpoint:
    """The checkpoint of all parts, in their order; one is in memory at a time."""
    folds, position = FoldMerger(plan.fold_config), 0
    for part in parts:
        fold = decode(part.checkpoint_bytes).fold
        folds.append(fold)
        position += fold.position
    return plan.checkpoint(folds.fold(position))


def _decoded(batch: Any, plan: BackfillPlan) -> FileBatch:
    with input_errors("the record batch", VectorError):
        columns = columns_of(batch.schema, plan.options, "the record batch")
        return batch_of(batch, columns, plan.fold_config.learning.dimensions, 0.0)


def _history(
    columns: Mapping[str, Any], times: NDArray[np.int64], plan: BackfillPlan
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which rows are not the topic's, and which do not say it."""
    if plan.until_ms is not None:
        is_clear = times != -1
        return is_clear & (times < plan.until_ms), ~is_clear
    if plan.until_offsets:
        positions = [columns[name].cast(pa.int64()) for name in ("partition", "offset")]
        partitions, offsets = (pc.fill_null(column, 0).to_numpy() for column in positions)
        is_clear = np.logical_and(*(column.is_valid().to_numpy(zero_copy_only=False) for column in positions))
        ends = np.array([plan.until_offsets.get(partition, 0) for partition in partitions.tolist()], np.int64)
        return is_clear & (offsets < ends), ~is_clear
    return np.ones(len(times), np.bool_), np.zeros(len(times), np.bool_)


def in_milliseconds(column: Any, name: str) -> NDArray[np.int64]:
    """The times of a column: timestamps, dates, ISO 8601, or milliseconds since 1970; -1: null. Raises `InputError`."""
    times = _as_text(column) if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) else column
    if pa.types.is_timestamp(times.type) or pa.types.is_date(times.type):
        times = times.cast(pa.timestamp("ms"), safe=False)
    elif not (pa.types.is_integer(times.type) or pa.types.is_null(times.type)):
        raise InputError(f"column {name} holds {column.type}, not times or milliseconds")
    elif len(odd := find_odd_timestamps(pc.drop_null(times).to_numpy(zero_copy_only=False))):
        raise InputError(
            f"column {name} holds {describe_odd_timestamp(odd[0])}: convert the column to milliseconds or to a type of "
            "times"
        )
    return np.asarray(pc.fill_null(times.cast(pa.int64()), -1).to_numpy(zero_copy_only=False))


def _as_text(column: Any) -> Any:
    for kind in _TEXTS:
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    return column
