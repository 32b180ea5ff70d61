"""Folds chunks on this machine, on Dask or on Spark: the same bytes on all, however many workers there are."""

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from itertools import islice
from typing import Any
from uuid import uuid4

import pyarrow as pa

from streampca.backfill.folding import BackfillPlan, Part, fold_rows
from streampca.errors import InputError
from streampca.files.chunks import Chunk, read
from streampca.process.machine import keep_freed_memory, usable_cores

Parts = Iterator[tuple[str, Part]]
Engine = Callable[[Mapping[str, Chunk], BackfillPlan], Parts]
"""Folds named chunks, and yields the parts as they are done."""

_AT_LEAST = 32  # chunks that a cluster has at a time: it may grow
_DIED = (
    "a process that folded a chunk died: is there memory enough for one a core, and does nothing write to the files? "
    "Then run it again, or on a cluster with --scheduler"
)


def fold_chunk(chunk: Chunk, plan: BackfillPlan) -> Part:
    """Fold the rows of a chunk. Raises `InputError`."""
    keep_freed_memory()  # otherwise a quarter of the time goes to the system
    return fold_rows(read(chunk, plan.options), plan, f"{chunk.path}#{chunk.start}")


def on_executor(executor: Executor, at_once: int, fold: Callable[[Chunk, BackfillPlan], Part] = fold_chunk) -> Engine:
    """On any executor, `at_once` chunks at a time; the next starts when a part is taken, so few parts wait."""

    def run(chunks: Mapping[str, Chunk], plan: BackfillPlan) -> Parts:
        remaining, names = iter(chunks.items()), dict[Future[Part], str]()

        def submit(count: int) -> None:
            names.update({executor.submit(fold, chunk, plan): name for name, chunk in islice(remaining, count)})

        try:
            submit(at_once)
            while names:
                for future in wait(names, return_when=FIRST_COMPLETED).done:
                    yield names.pop(future), future.result()
                    submit(1)
        finally:
            for future in names:
                future.cancel()

    return run


def on_processes(workers: int | None = None) -> Engine:
    """On new processes of this machine, one a core."""
    count = workers or usable_cores()

    def run(chunks: Mapping[str, Chunk], plan: BackfillPlan) -> Parts:
        others = set(multiprocessing.active_children())
        with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _end_with_parent) as pool:
            try:
                yield from on_executor(pool, 2 * count)(chunks, plan)
            except BaseException as error:
                for process in set(multiprocessing.active_children()) - others:
                    process.terminate()  # it may have minutes to go
                if isinstance(error, BrokenExecutor):
                    raise InputError(_DIED) from None
                raise

    return run


def _end_with_parent() -> None:
    """Let a process of the pool end with the one that has started it, however that ends, and silently at Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def wait_for_parent() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()


def on_dask(scheduler: str) -> Engine:
    """On the cluster with this scheduler, `tcp://host:port`, whose workers have streampca installed."""
    from dask import distributed  # here: an optional package

    dask: Any = distributed  # it has no types

    def run(chunks: Mapping[str, Chunk], plan: BackfillPlan) -> Parts:
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # errors are raised as well
        with dask.Client(scheduler) as client:
            at_once = max(_AT_LEAST, 2 * sum(client.nthreads().values()))
            try:
                yield from on_executor(client.get_executor(), at_once)(chunks, plan)
            except dask.KilledWorker:
                raise InputError(_DIED) from None

    return run


def on_spark(session: Any) -> Engine:
    """On a Spark session, whose executors have streampca installed: a job for each chunk, many at a time."""

    def run(chunks: Mapping[str, Chunk], plan: BackfillPlan) -> Parts:
        context, group = session.sparkContext, f"backfill {uuid4()}"
        at_once = max(_AT_LEAST, 2 * context.defaultParallelism)

        def fold(chunk: Chunk, plan: BackfillPlan) -> Part:
            context.setJobGroup(group, f"{chunk.path}#{chunk.start}")  # of this thread
            return _fold_on_spark(session, chunk, plan)

        with ThreadPoolExecutor(at_once) as threads:
            try:
                yield from on_executor(threads, at_once, fold)(chunks, plan)
            finally:
                context.cancelJobGroup(group)

    return run


def _fold_on_spark(session: Any, chunk: Chunk, plan: BackfillPlan) -> Part:
    def folded(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            yield pa.record_batch([[column] for column in fold_chunk(chunk, plan)], ["fold", "rejects"])

    [row] = session.range(0, 1, 1, 1).mapInArrow(folded, "fold binary, rejects binary").collect()
    return Part(bytes(row.fold), bytes(row.rejects))
