"""Folds chunks of files on this machine, on Dask or on Spark. The parts have the same bytes on each."""

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
from functools import partial
from itertools import islice
from typing import Any
from uuid import uuid4

import pyarrow as pa

from streampca.backfill.folding import BackfillPlan, Part, fold_rows
from streampca.errors import InputError
from streampca.files.chunks import Chunk, read
from streampca.process.machine import count_usable_cores, keep_freed_memory

Parts = Iterator[tuple[str, Part]]
Engine = Callable[[Mapping[str, Chunk], BackfillPlan], Parts]
"""A function that folds named chunks and yields each name with its part, in the order in which they end."""

_MIN_CHUNKS_IN_FLIGHT = 32  # on a cluster, whose workers may become more while the backfill runs
_WORKER_DIED = (
    "a process that folded a chunk died: is there memory enough for one a core, and does nothing write to the files? "
    "Then run it again, or on a cluster with --scheduler"
)


def fold_chunk(chunk: Chunk, plan: BackfillPlan) -> Part:
    """Fold the rows of a chunk. Raises `InputError`."""
    keep_freed_memory()  # returning memory to the system would take a quarter of the time
    return fold_rows(read(chunk, plan.options), plan, f"{chunk.path}#{chunk.start}")


def on_executor(
    executor: Executor, chunks_in_flight: int, fold: Callable[[Chunk, BackfillPlan], Part] = fold_chunk
) -> Engine:
    """Return an engine: a function that folds named chunks by this executor, and yields each name with its part.

    A part is what `fold` returns for a chunk: what was learned from the chunk, and its rejected rows. At most
    `chunks_in_flight` chunks are submitted at a time, and a further chunk only when the caller has taken a part.
    """

    def fold_chunks(chunks: Mapping[str, Chunk], plan: BackfillPlan) -> Parts:
        """Fold the chunks by the executor, and yield their parts."""
        remaining_chunks = iter(chunks.items())
        name_by_future: dict[Future[Part], str] = {}

        def submit_next(count: int) -> None:
            for name, chunk in islice(remaining_chunks, count):
                future = executor.submit(fold, chunk, plan)
                name_by_future[future] = name

        try:
            submit_next(chunks_in_flight)
            while name_by_future:
                for future in wait(name_by_future, return_when=FIRST_COMPLETED).done:
                    yield name_by_future.pop(future), future.result()
                    submit_next(1)
        finally:
            for future in name_by_future:
                future.cancel()

    return fold_chunks


def on_processes(workers: int | None = None) -> Engine:
    """Make an engine of new processes of this machine, by default one for each usable core."""
    process_count = workers or count_usable_cores()

    def fold_chunks(chunks: Mapping[str, Chunk], plan: BackfillPlan) -> Parts:
        """Fold the chunks in a pool of processes, and yield their parts. The processes end after the last chunk."""
        earlier_children = set(multiprocessing.active_children())
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(process_count, mp_context=spawn, initializer=_end_with_parent) as pool:
            fold_on_pool = on_executor(pool, chunks_in_flight=2 * process_count)
            try:
                yield from fold_on_pool(chunks, plan)
            except BaseException as error:  # also `GeneratorExit`, if the caller stops before the last part
                _terminate_children(except_for=earlier_children)
                if isinstance(error, BrokenExecutor):
                    raise InputError(_WORKER_DIED) from None
                raise

    return fold_chunks


def _terminate_children(*, except_for: set[Any]) -> None:
    """Terminate all child processes except those that were started before the pool.

    Without this, the pool would wait until its processes have folded their chunks.
    """
    processes_of_pool = set(multiprocessing.active_children()) - except_for
    for process in processes_of_pool:
        process.terminate()


def _end_with_parent() -> None:
    """End this process when its parent has ended, even if the parent was killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # otherwise Ctrl-C prints a traceback of each process

    def wait_for_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()


def on_dask(scheduler: str) -> Engine:
    """Make an engine of the Dask cluster with the scheduler at `tcp://host:port`.

    streampca must be installed on its workers.
    """
    from dask import distributed

    dask: Any = distributed  # Any, since its functions have no types, so mypy would refuse calls

    def fold_chunks(chunks: Mapping[str, Chunk], plan: BackfillPlan) -> Parts:
        """Fold the chunks on the workers of the cluster, and yield their parts."""
        # Dask would log errors that are raised here too.
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        with dask.Client(scheduler) as client:
            thread_count = sum(client.nthreads().values())
            # Two chunks a thread, so that no thread waits for its next chunk.
            chunks_in_flight = max(_MIN_CHUNKS_IN_FLIGHT, 2 * thread_count)
            engine = on_executor(client.get_executor(), chunks_in_flight=chunks_in_flight)
            try:
                yield from engine(chunks, plan)
            except dask.KilledWorker:
                raise InputError(_WORKER_DIED) from None

    return fold_chunks


def on_spark(session: Any) -> Engine:
    """Make an engine of a Spark session. Threads of this process start a job for each chunk, and wait for it.

    streampca must be installed on Spark's executors.
    """

    def fold_chunks(chunks: Mapping[str, Chunk], plan: BackfillPlan) -> Parts:
        """Fold each chunk in a job of Spark, and yield the parts: the folds of the chunks.

        If the caller stops before the last part, running jobs are cancelled.
        """
        context = session.sparkContext
        job_group = f"backfill {uuid4()}"
        core_count = context.defaultParallelism
        # Two chunks a core, so that no core waits for its next chunk.
        chunks_in_flight = max(_MIN_CHUNKS_IN_FLIGHT, 2 * core_count)
        fold = partial(_fold_by_spark_job, session, job_group)
        with ThreadPoolExecutor(chunks_in_flight) as threads:
            engine = on_executor(threads, chunks_in_flight=chunks_in_flight, fold=fold)
            try:
                yield from engine(chunks, plan)
            finally:
                context.cancelJobGroup(job_group)

    return fold_chunks


def _fold_by_spark_job(session: Any, job_group: str, chunk: Chunk, plan: BackfillPlan) -> Part:
    """Fold a chunk on an executor of Spark, and return its part.

    Spark runs functions only on rows. So a job of this group maps a table of one row to a row with the part's bytes.
    """
    session.sparkContext.setJobGroup(job_group, f"{chunk.path}#{chunk.start}")  # for the jobs that this thread starts

    def fold_for_row(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            part = fold_chunk(chunk, plan)
            yield pa.record_batch([[part.checkpoint_bytes], [part.rejects_bytes]], ["fold", "rejects"])

    one_row = session.range(0, 1, 1, 1)
    [row] = one_row.mapInArrow(fold_for_row, "fold binary, rejects binary").collect()
    return Part(checkpoint_bytes=bytes(row.fold), rejects_bytes=bytes(row.rejects))
