"""Rows of a stream as files, and what a single pass learns of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streampca.backfill import BackfillPlan, engines
from streampca.backfill.execute import execute
from streampca.files.chunks import Chunk, chunks_of
from streampca.files.columns import FileOptions
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import FoldConfig
from streampca.formats.arrow import column_of
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig
from streampca.stores.base import Store
from streampca.stores.memory import MemoryStore

D, K = 300, 4
START_MS = 1_700_000_000_000


def make_rows(n: int, seed: int = 0, d: int = D) -> F64:
    """Make n rows (n, d) that lie near a subspace of K dimensions, the same for every seed."""
    chance = np.random.default_rng(seed)
    basis = np.random.default_rng(99).standard_normal((K, d)) * np.array([4, 3, 2, 1])[:, None]
    return chance.standard_normal((n, K)) @ basis + 0.1 * chance.standard_normal((n, d)) + 2


def make_table(Y: F64, first: int = 0, **more: object) -> pa.Table:
    """Make a table of vectors, whose times are a second apart. `first` is the number of the first row."""
    times = pa.array(START_MS + 1000 * np.arange(first, first + len(Y)), pa.timestamp("ms"))
    return pa.table({"embedding": column_of(Y), "time": times, **more})


def write_files(folder: Path, Y: F64, files: int = 3, group: int = 400) -> Path:
    """Write rows to Parquet files in a new folder, which is returned. `group` is the number of rows in a row group."""
    folder.mkdir()
    for i, part in enumerate(np.array_split(np.arange(len(Y)), files)):
        pq.write_table(make_table(Y[part], int(part[0])), folder / f"{i}.parquet", row_group_size=group)
    return folder


def make_plan(d: int = D, **more: object) -> BackfillPlan:
    """Make a plan with these fields. A half-life among them is a field of its `FoldConfig`."""
    half_life: dict[str, Any] = {name: more.pop(name) for name in list(more) if name.startswith("half_life")}
    fold_config = FoldConfig(LearningConfig(d, K, 10, factor=True), **half_life)
    return BackfillPlan("readings", fold_config, FileOptions("embedding"), "time", **more)  # type: ignore[arg-type]


def fold_here(chunks: Mapping[str, Chunk], plan: BackfillPlan) -> engines.Parts:
    """Fold the chunks in this process, the last one first: an engine."""
    for name, chunk in reversed(chunks.items()):
        yield name, engines.fold_chunk(chunk, plan)


def run_backfill(
    engine: engines.Engine, plan: BackfillPlan, *sources: Path, store: Store | None = None
) -> tuple[Checkpoint, pa.Table]:
    """Execute a backfill of files, and return the checkpoint and the rejected rows."""
    chunks = chunks_of([str(source) for source in sources])
    return execute(store or MemoryStore(), plan, chunks, engine, lambda done_count: None)


def learn_files(engine: engines.Engine, plan: BackfillPlan, *sources: Path, store: Store | None = None) -> Checkpoint:
    """Execute a backfill of files, and return the checkpoint."""
    checkpoint, _ = run_backfill(engine, plan, *sources, store=store)
    return checkpoint
