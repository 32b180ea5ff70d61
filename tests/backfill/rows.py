"""Rows of a stream as files, and what a single pass learns of them."""

from collections.abc import Mapping
from pathlib import Path

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


def rows(n: int, seed: int = 0, d: int = D) -> F64:
    chance = np.random.default_rng(seed)
    basis = np.random.default_rng(99).standard_normal((K, d)) * np.array([4, 3, 2, 1])[:, None]
    return chance.standard_normal((n, K)) @ basis + 0.1 * chance.standard_normal((n, d)) + 2


def table(Y: F64, first: int = 0, **more: object) -> pa.Table:
    """Rows a second apart, from the `first` on."""
    times = pa.array(START_MS + 1000 * np.arange(first, first + len(Y)), pa.timestamp("ms"))
    return pa.table({"embedding": column_of(Y), "time": times, **more})


def write(folder: Path, Y: F64, files: int = 3, group: int = 400) -> Path:
    folder.mkdir()
    for i, part in enumerate(np.array_split(np.arange(len(Y)), files)):
        pq.write_table(table(Y[part], int(part[0])), folder / f"{i}.parquet", row_group_size=group)
    return folder


def backfill_of(d: int = D, **more: object) -> BackfillPlan:
    fold = FoldConfig(
        LearningConfig(d, K, 10, factor=True), **{k: more.pop(k) for k in list(more) if k.startswith("half")}
    )  # type: ignore[arg-type]
    return BackfillPlan("readings", fold, FileOptions("embedding"), "time", **more)  # type: ignore[arg-type]


def here(chunks: Mapping[str, Chunk], backfill: BackfillPlan) -> engines.Parts:
    """In this process, the last chunk first."""
    for name, chunk in reversed(chunks.items()):
        yield name, engines.fold_chunk(chunk, backfill)


def executed(
    engine: engines.Engine, backfill: BackfillPlan, *sources: Path, store: Store | None = None
) -> tuple[Checkpoint, pa.Table]:
    """The checkpoint and the rejected rows."""
    return execute(store or MemoryStore(), backfill, chunks_of([*map(str, sources)]), engine, lambda done: None)


def learned(engine: engines.Engine, backfill: BackfillPlan, *sources: Path, store: Store | None = None) -> Checkpoint:
    return executed(engine, backfill, *sources, store=store)[0]
