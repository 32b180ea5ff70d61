"""Folds of rows, wherever they are, and their merger. The parts are bytes, so that any engine can move them:

parts = [fold_batches(batches, backfill) for batches in pieces]  # in any process and order
checkpoint = merge(parts, backfill)  # in the order of the pieces
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
from streampca.fold.decoded import Batch, Reject
from streampca.fold.event_time import EventTime
from streampca.fold.fold import Fold, FoldConfig, FoldStats
from streampca.fold.judge import Judge
from streampca.fold.partitions import backfill_partition
from streampca.formats import arrow
from streampca.formats.packing import VectorError
from streampca.pca.arrays import Array
from streampca.pca.merge import Merger, pooled

REJECTS = pa.schema({"piece": pa.string(), "row": pa.int64(), "reason": pa.string(), "message": pa.string()})


@dataclass(frozen=True)
class Backfill:
    """Which rows to learn, and how."""

    topic: str
    fold: FoldConfig  # the worker's
    columns: tuple[str, ...]  # one of lists of d numbers, or d of numbers
    timestamp_column: str | None = None
    until_ms: int | None = None  # rows from this time on are the topic's
    until_offsets: Mapping[int, int] | None = None  # or, of columns `partition` and `offset`, from these offsets on
    number: int = 0  # tells the backfills of a topic apart

    @property
    def until(self) -> str:
        """Where the worker begins, as a checkpoint has it: a time in milliseconds, or offsets of partitions."""
        offsets = (f"{partition}:{offset}" for partition, offset in sorted((self.until_offsets or {}).items()))
        return str(self.until_ms) if self.until_ms is not None else ",".join(offsets)

    @property
    def read(self) -> list[str]:
        """The columns that are read."""
        times = [self.timestamp_column] if self.timestamp_column else []
        return [*self.columns, *times, *(["partition", "offset"] if self.until_offsets else [])]


class Part(NamedTuple):
    """The fold of a piece as a checkpoint's file, and its rejected rows as a Parquet file."""

    fold: bytes
    rejects: bytes


def fold_batches(batches: Iterable[Any], backfill: Backfill, name: str = "") -> Part:
    """Learn the rows of record batches, in one pass; where they are cut changes no bit. `name` is for the rejects.

    Raises `InputError` if a column is missing or is none of numbers.
    """
    learning = backfill.fold.learning
    judge, fold, rejects, start = Judge.of(learning), Fold.empty(learning), list[Any](), 0
    with threadpool_limits(1):  # the same bits everywhere
        for whole in batches:
            history, unknown = _history(whole, backfill)
            batch = whole if len(history) == len(whole) else whole.take(pa.array(history))
            vectors, places, rejected = _vectors(batch, backfill)
            decoded = judge.checked(vectors, places, np.ones(len(places), np.int64), rejected)
            unfit = [reject._replace(place=int(history[reject.place])) for reject in decoded.rejects]
            unfit += [Reject(int(place), "no_place", "it may be history or the topic's") for place in unknown]
            times = _times(batch, backfill)[decoded.places]
            fold = fold.take(Batch(decoded._replace(rejects=unfit), times, (), start + len(whole)), backfill.fold)[0]
            rejects += [(name, start + place, reason, text) for place, reason, text in sorted(unfit)]
            start += len(whole)
        fold = replace(fold, position=start, state=fold.provisional(learning)).without_pending()
    out = pa.BufferOutputStream()  # a BytesIO that another thread of Arrow's closes may abort the process at its exit
    columns = [[row[i] for row in rejects] for i in range(len(REJECTS))]
    parquet.write_table(pa.table(columns, schema=REJECTS), out)
    return Part(_encoded(fold, backfill), out.getvalue().to_pybytes())


def merge(parts: Iterable[Part], backfill: Backfill) -> Checkpoint:
    """The checkpoint of all parts, in their order; one is in memory at a time."""
    merger, stats, now_ms, position = Merger(backfill.fold.learning.columns), list[FoldStats](), -1, 0
    for part in parts:
        fold = files.decode(part.fold).fold
        of_part = fold.event_time.now_ms if fold.event_time.now_ms >= 0 else fold.stats.last_ms  # of few rows: unknown
        time_ms = max(of_part, now_ms)
        merger.fade(_kept(backfill.fold, fold.stats.learned, time_ms - now_ms if now_ms >= 0 else 0))
        merger.add(fold.state, backfill.fold.decay(time_ms - of_part if of_part >= 0 else 0))
        stats.append(fold.stats)
        now_ms, position = time_ms, position + fold.position
    learning, groups = backfill.fold.learning, merger.groups()
    fold = Fold.empty(learning)
    state = pooled(groups, learning.columns, learning.limits.columns, learning.dtype) if groups else fold.state
    fold = replace(fold, position=position, state=state, event_time=EventTime(now_ms), stats=FoldStats.total(stats))
    return files.decode(_encoded(fold, backfill))


def _kept(config: FoldConfig, messages: int, elapsed_ms: int) -> float:
    """The share of the past that is left after so many messages and so much time."""
    return 2.0 ** (-messages / config.half_life_messages) if config.half_life_messages else config.decay(elapsed_ms)


def _encoded(fold: Fold, backfill: Backfill) -> bytes:
    partition = backfill_partition(backfill.number)
    return files.encode(Checkpoint(backfill.topic, "", partition, fold, backfill.fold.as_dict(), backfill.until))


def _history(batch: Any, backfill: Backfill) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of the rows that are not the topic's, and of those that do not say it."""
    if missing := set(backfill.read) - set(batch.schema.names):
        raise InputError(f"there is no column {min(missing)}; there are {', '.join(batch.schema.names)}")
    place, known = np.arange(len(batch)), np.ones(len(batch), bool)
    if backfill.until_ms is not None:
        known = _known(batch.column(str(backfill.timestamp_column)))
        return place[known & (_times(batch, backfill) < backfill.until_ms)], place[~known]
    if backfill.until_offsets:
        columns = [batch.column(name) for name in ("partition", "offset")]
        partitions, offsets = (pc.fill_null(each.cast(pa.int64()), 0).to_numpy() for each in columns)
        known = np.logical_and(*map(_known, columns))
        ends = np.array([backfill.until_offsets.get(partition, 0) for partition in partitions.tolist()], np.int64)
        return place[known & (offsets < ends)], place[~known]
    return place, place[:0]


def _known(column: Any) -> NDArray[np.bool_]:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False))


def _times(batch: Any, backfill: Backfill) -> NDArray[np.int64]:
    """The time of each row in milliseconds since 1970; -1: unknown."""
    if backfill.timestamp_column is None:
        return np.full(len(batch), -1, np.int64)
    column = batch.column(backfill.timestamp_column)
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    elif not pa.types.is_integer(column.type):
        raise InputError(f"column {backfill.timestamp_column} holds {column.type}, not times or milliseconds")
    return np.asarray(pc.fill_null(column, -1).to_numpy(zero_copy_only=False), np.int64)


def _vectors(batch: Any, backfill: Backfill) -> tuple[Array, NDArray[np.int64], list[Reject]]:
    """The rows with d entries (n, d), NaN for null, their places in the batch, and the others."""
    d = backfill.fold.learning.dimensions
    if len(backfill.columns) > 1:
        rows = [_floats(batch.column(name), name) for name in backfill.columns]
        return np.column_stack(rows), np.arange(len(batch)), []
    column = batch.column(backfill.columns[0])
    rejects = list(_misfits(column, d))
    bad = [reject.place for reject in rejects]
    places = np.setdiff1d(np.arange(len(batch)), bad, assume_unique=True)
    try:
        return arrow.numbers(column.take(pa.array(places)), d, gaps=True).reshape(-1, d), places, rejects
    except VectorError as error:
        raise InputError(f"column {backfill.columns[0]}: {error}") from None


def _floats(column: Any, name: str) -> Array:
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise InputError(f"column {name} holds {column.type}, not numbers")
    return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)


def _misfits(column: Any, d: int) -> Iterator[Reject]:
    """The rows of a column of lists that are null or have another length."""
    if not (
        pa.types.is_fixed_size_list(column.type) or pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    ):
        return
    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
    for place in np.flatnonzero(lengths != d):
        missing = lengths[place] < 0
        text = "the row is null" if missing else f"{lengths[place]} numbers, not {d}"
        yield Reject(int(place), "no_value" if missing else "wrong_length", text)
