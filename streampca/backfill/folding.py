"""Folds rows of files, and merges the folds. Parts are bytes, so that any engine can move them between processes:

parts = [fold_batches(batches, plan) for batches in chunks]  # in any process and order
checkpoint = merge(parts, plan)  # in the order of the chunks
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc, parquet
from threadpoolctl import threadpool_limits

from streampca.errors import InputError
from streampca.files.arrow import choose_columns_by_schema, read_record_batch
from streampca.files.columns import FileOptions
from streampca.files.rows import FileBatch, input_errors
from streampca.fold.checkpoint import Checkpoint, decode, encode
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.merging import FoldMerger
from streampca.fold.partitions import backfill_partition
from streampca.formats.element_indices import ElementIndices
from streampca.formats.epoch import describe_odd_timestamp, find_odd_timestamps
from streampca.formats.errors import VectorError
from streampca.formats.judge import Judge
from streampca.formats.record import Batch, Reject

_TIME_TYPES = (pa.int64(), *(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in ("UTC", None)))
_NO_TIME = -1  # of a row without a time
_NO_POSITION = "it may be history or the topic's"  # the message of a row without its time or its offset
_REJECT_SCHEMA = pa.schema({"chunk": pa.string(), "row": pa.int64(), "reason": pa.string(), "message": pa.string()})
ELEMENT_INDICES_KEY = "places_of_elements"  # in the metadata of a table of rejects


@dataclass(frozen=True)
class BackfillPlan:
    """Which rows a backfill learns, and with which settings."""

    topic: str
    fold_config: FoldConfig  # the worker's
    files: FileOptions  # where the numbers are
    timestamp_column: str | None = None
    # The end of the backfill, at most one of these. Later rows are in the topic, from which the worker learns them.
    until_ms: int | None = None
    until_offsets: Mapping[int, int] | None = None  # by partition; the files have columns `partition` and `offset`
    number: int = 0  # distinguishes the backfills of a topic

    @property
    def until(self) -> str:
        """End of the backfill as a text, as in `Checkpoint.until`; "" if all rows are learned."""
        if self.until_ms is not None:
            return str(self.until_ms)
        offsets = sorted((self.until_offsets or {}).items())
        return ",".join(f"{partition}:{offset}" for partition, offset in offsets)

    @property
    def options(self) -> FileOptions:
        """The user's options for reading, completed by what this plan needs.

        The fold gives the dimensions and their names. The columns of times or offsets decide which rows are learned.
        """
        other_columns = []
        if self.timestamp_column:
            other_columns.append(self.timestamp_column)
        if self.until_offsets:
            other_columns += ["partition", "offset"]
        return self.files._replace(
            dimensions=self.fold_config.learning.dimensions,
            names=self.fold_config.names,
            impute=True,  # gaps are read; a row with too many is rejected before it is learned
            other_columns=other_columns,
        )

    def make_checkpoint(self, fold: Fold) -> Checkpoint:
        """Make a checkpoint of what this backfill has learned."""
        return Checkpoint(
            topic=self.topic,
            topic_id="",  # files have no id
            partition=backfill_partition(self.number),
            fold=fold,
            settings=self.fold_config.as_dict(),
            until=self.until,
            names=self.fold_config.names,
        )


class _RejectRow(NamedTuple):
    """A row of the table of rejected rows; its columns are `_REJECT_SCHEMA`."""

    chunk: str
    row: int
    reason: str
    message: str


class Part(NamedTuple):
    """The fold of a chunk as a checkpoint's file, and its rejected rows as a Parquet file."""

    checkpoint_bytes: bytes
    rejects_bytes: bytes


def fold_batches(batches: Iterable[Any], plan: BackfillPlan, name: str = "") -> Part:
    """Learn the rows of Arrow record batches, and return their fold and the rejected rows.

    The result has the same bytes however the rows are divided into batches. `name` is written into the column `chunk`
    of the table of rejected rows. Raises `InputError` for a wrong column.
    """
    return fold_rows((_decode_batch(batch, plan) for batch in batches), plan, name)


def fold_rows(batches: Iterable[FileBatch], plan: BackfillPlan, name: str) -> Part:
    """Learn the rows of the chunk `name`, and return their fold and the rejected rows."""
    learning = plan.fold_config.learning
    judge = Judge.of(learning)  # decides which vectors must not be learned
    fold = Fold.empty(learning)
    rejects: list[_RejectRow] = []
    element_indices = ElementIndices()  # where elements of arrays were found, to warn if they move between rows
    rows_before = 0
    with threadpool_limits(1):  # with several threads, the last bits of the results might differ
        for file_batch in batches:
            batch = _select_rows_to_learn(file_batch, plan, judge, rows_before)
            fold, _ = fold.take(batch, plan.fold_config)
            for reject in batch.decoded.rejects:
                row = rows_before + reject.index
                rejects.append(_RejectRow(chunk=name, row=row, reason=reject.reason, message=reject.message))
            if file_batch.element_indices is not None:
                element_indices.add(file_batch.element_indices)
            rows_before += file_batch.row_count
        # The pending vectors do not fill a block, and no more vectors will come. So they are learned now.
        state_with_pending = fold.provisional(learning)
    fold = replace(fold, state=state_with_pending).without_pending()
    fold = replace(fold, position=rows_before)  # rows of files have no offsets, so the position counts them
    return Part(
        checkpoint_bytes=encode(plan.make_checkpoint(fold)),
        rejects_bytes=_write_parquet(rejects, element_indices),
    )


def _select_rows_to_learn(file_batch: FileBatch, plan: BackfillPlan, judge: Judge, rows_before: int) -> Batch:
    """Return the rows before the end of the backfill as a batch to learn.

    - Rows after the end are left out without a reject, since the worker reads them from the topic.
    - Rows without the time or offset that is compared with the end are rejected.
    - Of the other rows, those are rejected whose vectors must not be learned.

    A row may hold several vectors.
    """
    vectors = file_batch.row_vectors.vectors
    vectors_per_row = file_batch.row_vectors.counts
    columns = {name: _to_arrow(column) for name, column in file_batch.other_columns.items()}
    times_ms = np.full(file_batch.row_count, _NO_TIME)
    if plan.timestamp_column:
        times_ms = convert_to_milliseconds(columns[plan.timestamp_column], plan.timestamp_column)
    # Both are masks of rows. `is_before_end` is also False for a row whose time or offset is needed, but missing.
    is_before_end, has_time_or_offset = _find_rows_before_end(columns, times_ms, plan)
    if not is_before_end.all():  # an optimisation: usually all rows are before the end
        is_vector_before_end = np.repeat(is_before_end, vectors_per_row)
        vectors = vectors[is_vector_before_end]
    rows_with_vectors = np.flatnonzero(is_before_end & (vectors_per_row > 0))
    errors = file_batch.row_vectors.errors
    rejects = [Reject(row, error.reason, str(error)) for row, error in errors if is_before_end[row]]
    rejects += [Reject(row, "no_position", _NO_POSITION) for row in np.flatnonzero(~has_time_or_offset).tolist()]
    decoded = judge.reject_bad(
        vectors, indices=rows_with_vectors, counts=vectors_per_row[rows_with_vectors], earlier_rejects=rejects
    )
    times_of_good_rows = times_ms[decoded.indices]
    next_row = rows_before + file_batch.row_count
    return Batch(decoded, timestamps=times_of_good_rows, records=(), next=next_row)


def _to_arrow(column: Any) -> Any:
    """Return a column as an Arrow array; empty texts of CSV become null."""
    if isinstance(column, np.ndarray):
        return pa.array([None if cell == "" else cell for cell in column])
    return column


def _write_parquet(rejects: Sequence[_RejectRow], element_indices: ElementIndices) -> bytes:
    """Return the rejected rows as a Parquet file, with `element_indices` in its metadata."""
    # A thread of Arrow may release a BytesIO while Python exits, which aborts the process.
    out = pa.BufferOutputStream()
    columns = [[reject[i] for reject in rejects] for i in range(len(_REJECT_SCHEMA))]
    schema = _REJECT_SCHEMA.with_metadata({ELEMENT_INDICES_KEY: element_indices.encode()})
    parquet.write_table(pa.table(columns, schema=schema), out)
    return out.getvalue().to_pybytes()  # type: ignore[no-any-return]


def decode_element_indices(rejects: Any) -> ElementIndices:
    """Decode at which indices array elements were found, from the metadata of a table of rejected rows."""
    text = (rejects.schema.metadata or {}).get(ELEMENT_INDICES_KEY.encode())
    return ElementIndices.decode(text) if text else ElementIndices()  # an earlier release wrote none


def merge(parts: Iterable[Part], plan: BackfillPlan) -> Checkpoint:
    """Merge the parts, in the order of their chunks, to one checkpoint. Its position is the number of rows."""
    merger = FoldMerger(plan.fold_config)
    row_count = 0
    for part in parts:
        fold = decode(part.checkpoint_bytes).fold
        merger.append(fold)
        rows_of_part = fold.position  # rows of files have no offsets, so the position counts them
        row_count += rows_of_part
    return plan.make_checkpoint(merger.make_fold(position=row_count))


def _decode_batch(batch: Any, plan: BackfillPlan) -> FileBatch:
    """Decode the vectors in an Arrow record batch. Raises `InputError` for a wrong column."""
    with input_errors("the record batch", VectorError):
        columns = choose_columns_by_schema(batch.schema, plan.options, "the record batch")
        dimensions = plan.fold_config.learning.dimensions
        vector_reader = columns.create_vector_reader(dimensions, value_name="record batch")
        return read_record_batch(batch, columns, vector_reader, progress=0.0)


def _find_rows_before_end(
    columns: Mapping[str, Any], times_ms: NDArray[np.int64], plan: BackfillPlan
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two masks (n,): rows before the end of the backfill, and rows for which this can be decided.

    If the end is a time, it can be decided for rows with a time; if the end is an offset of each partition, for rows
    with a partition and an offset.
    """
    if plan.until_ms is not None:
        has_time = times_ms != _NO_TIME
        return has_time & (times_ms < plan.until_ms), has_time
    if plan.until_offsets:
        return _find_rows_before_offsets(columns["partition"], columns["offset"], plan.until_offsets)
    all_rows = np.ones(len(times_ms), np.bool_)  # a backfill without an end
    return all_rows, all_rows


def _find_rows_before_offsets(
    partition_column: Any, offset_column: Any, end_offsets: Mapping[int, int]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two masks (n,): rows before the end of the backfill, and rows with a partition and an offset.

    `end_offsets` has, by partition, the first offset that the backfill does not learn. A partition without an end
    offset is not learned.
    """
    partitions = partition_column.cast(pa.int64())
    offsets = offset_column.cast(pa.int64())
    has_position = pc.and_(partitions.is_valid(), offsets.is_valid()).to_numpy(zero_copy_only=False)
    end_of_each_row = np.array([end_offsets.get(partition, 0) for partition in partitions.to_pylist()], np.int64)
    is_before_end = pc.fill_null(offsets, 0).to_numpy() < end_of_each_row
    return has_position & is_before_end, has_position


def convert_to_milliseconds(column: Any, name: str) -> NDArray[np.int64]:
    """Return the times of a column in milliseconds since 1970, or −1 for null.

    It may hold timestamps, dates, ISO 8601 texts or milliseconds; times without a zone are UTC. Raises `InputError`.
    """
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    times = _parse_times(column) if is_text else column
    if pa.types.is_timestamp(times.type) or pa.types.is_date(times.type):
        times = times.cast(pa.timestamp("ms"), safe=False)  # cuts off microseconds
    # A column without any value has the type null.
    elif pa.types.is_integer(times.type) or pa.types.is_null(times.type):
        _refuse_unless_milliseconds(times, name)
    else:
        raise InputError(f"column {name} holds {column.type}, not times or milliseconds")
    return np.asarray(pc.fill_null(times.cast(pa.int64()), _NO_TIME).to_numpy(zero_copy_only=False))


def _refuse_unless_milliseconds(times: Any, name: str) -> None:
    """Raise `InputError` if integers of a column are not milliseconds since 1970, but perhaps seconds."""
    odd_timestamps = find_odd_timestamps(pc.drop_null(times).to_numpy(zero_copy_only=False))
    if len(odd_timestamps):
        description = describe_odd_timestamp(odd_timestamps[0])
        raise InputError(f"column {name} holds {description}: convert the column to milliseconds or to a type of times")


def _parse_times(texts: Any) -> Any:
    """Return texts as numbers or timestamps, or as they are if not all of them are times."""
    for time_type in _TIME_TYPES:
        try:
            return texts.cast(time_type)
        except pa.ArrowInvalid:
            continue
    return texts
