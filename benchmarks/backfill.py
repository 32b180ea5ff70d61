"""A backfill of 1 GB of Parquet on one process and on two: `python -m benchmarks.backfill`.

d = 784, k = 20, row groups of 20,000 vectors. *Read and learn* is what pyarrow takes to read them into arrays, and what
one process takes to learn these, without a backfill. Neither the start of the processes nor their first chunks
are counted. Memory is the most that a process has while it folds one chunk after the other.
"""

import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from threadpoolctl import threadpool_limits

from benchmarks.report import Bar, parser, publish
from experiments.report import table
from streampca.backfill import BackfillPlan, engines
from streampca.backfill.execute import execute
from streampca.files.chunks import Chunk, chunks_of
from streampca.files.columns import FileOptions
from streampca.fold.fold import Fold, FoldConfig
from streampca.formats.arrow import column_of
from streampca.formats.record import batch_of_rows
from streampca.pca.compilation import compile_learning_functions
from streampca.pca.learning import LearningConfig
from streampca.process.machine import keep_freed_memory
from streampca.stores.memory import MemoryStore

PART, D, K = "backfill", 784, 20
BACKFILL = BackfillPlan("readings", FoldConfig(LearningConfig(D, K)), FileOptions("embedding"))


def main() -> None:
    """Measure and write."""
    options = parser(__doc__).parse_args()
    groups, rows = (4, 500) if options.smallest else (8, 20_000)
    with tempfile.TemporaryDirectory() as folder:
        write(path := Path(folder) / "lake.parquet", groups, rows)
        chunks = chunks_of([str(path)])
        one, two, apart = seconds(chunks, 1), seconds(chunks, 2), seconds_apart(path)
        command = [sys.executable, "-m", "benchmarks.backfill", "--peak", str(path)]
        peak = int(subprocess.run(command, capture_output=True, check=True).stdout)  # noqa: S603
    cells = [f"{one:.1f}", f"{two:.1f}", f"{one / two:.2f}×", f"{apart:.1f}", f"{peak:,}", f"{rows * D / 2**17:.0f}"]
    heads = ["one process, s", "two, s", "speed-up", "read and learn, s", "most memory, MiB", "a row group, MiB"]
    bars = [Bar("Speed-up of a backfill with two processes", [one / two], "≥", 1.7, "×"),
            Bar("Backfill, share of the speed of reading and learning", [apart / one], "≥", 0.7, "×")]  # fmt: skip
    publish(PART, options, table(heads, [cells]), bars)


def write(path: Path, groups: int, rows: int) -> None:
    """A Parquet file of vectors with a low-rank structure."""
    chance = np.random.default_rng(0)
    basis = chance.standard_normal((K, D))
    with parquet.ParquetWriter(path, pa.schema({"embedding": pa.list_(pa.float64(), D)})) as writer:
        for _ in range(groups):
            Y = chance.standard_normal((rows, K)) @ basis + 0.1 * chance.standard_normal((rows, D))
            writer.write_table(pa.table({"embedding": column_of(Y)}), row_group_size=rows)


def seconds(chunks: list[Chunk], workers: int) -> float:
    """The time of a backfill on processes that have folded before."""
    times: list[float] = []
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        list(pool.map(partial(engines.fold_chunk, plan=BACKFILL), chunks[:1] * 4 * workers))
        engine = engines.on_executor(pool, 2 * workers)
        execute(MemoryStore(), BACKFILL, chunks, engine, lambda done: times.append(time.perf_counter()))
    return times[-1] - times[0]


def seconds_apart(path: Path) -> float:
    """The time to read the row groups into arrays, and to learn them, in one thread."""
    config, file = BACKFILL.fold_config, parquet.ParquetFile(path)
    compile_learning_functions(config.learning)
    keep_freed_memory()  # as backfills and workers do
    started = time.perf_counter()
    with threadpool_limits(1):
        for group in range(file.num_row_groups):
            V = file.read_row_group(group, use_threads=False)["embedding"].combine_chunks().flatten().to_numpy()
            Fold.empty(config.learning).take(batch_of_rows(V.reshape(-1, D), 0), config)
    return time.perf_counter() - started


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        for chunk in chunks_of(sys.argv[2:]):
            engines.fold_chunk(chunk, BACKFILL)
        status = Path("/proc/self/status").read_text()  # not getrusage: it counts the process that has started this one
        print(next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM")))
    else:
        main()
