"""Processes, Dask and Spark fold the same bits, in parallel, and a process that dies ends the backfill.

The examples for Spark in docs/backfill.md run here, too, as starting Spark takes long.
"""

import multiprocessing
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import pytest
from dask import distributed

from streampca.backfill import BackfillPlan, engines
from streampca.errors import InputError
from streampca.fold import checkpoint as files
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from tests.backfill.rows import fold_here, learn_files, make_plan
from tests.backfill.test_tutorial import PAGE, fill
from tests.errors import refusal


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A session with two processes of its own."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    yield session
    session.stop()


def test_processes_dask_and_spark_give_the_same_bits(lake: Path, spark: Any) -> None:
    expected = files.encode(learn_files(fold_here, make_plan(), lake))
    for workers in (1, 2):
        assert files.encode(learn_files(engines.on_processes(workers), make_plan(), lake)) == expected
    local: Any = distributed.LocalCluster  # it has no types
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        local(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
    ):
        on_dask = engines.on_dask(cluster.scheduler_address)
        assert files.encode(learn_files(on_dask, make_plan(), lake)) == expected
        assert "a process that folded a chunk died: is there memory enough" in refusal(
            InputError, learn_files, on_dask, deadly(os.getpid()), lake
        )
    assert files.encode(learn_files(engines.on_spark(spark), make_plan(), lake)) == expected


def test_the_examples_for_spark_run(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "lake", 0)
    fill(tmp_path / "arriving", 1, 500)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"spark": spark}
    for example in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[:2]:
        for folder in ("lake", "arriving"):  # the session's own working directory is another one
            example = example.replace(f'parquet("{folder}/")', f'parquet("{tmp_path / folder}")')
        exec(example, names)  # noqa: S102
    checkpoints = Checkpoints(DirectoryStore(tmp_path / "streampca-store"), "readings")
    saved = {p - 2**31: checkpoints.newest(p) for p in checkpoints.partitions()}
    assert {number: newest and newest.fold.stats.learned for number, newest in saved.items()} == {0: 1000, 1000: 500}


@dataclass(frozen=True)
class Deadly(BackfillPlan):
    """Ends every other process that unpickles it."""

    def __reduce__(self) -> Any:
        return deadly, (os.getpid(),)


def deadly(pid: int) -> BackfillPlan:
    if os.getpid() != pid:
        os._exit(9)
    return Deadly(**vars(make_plan()))


def test_a_process_that_dies_ends_it(lake: Path) -> None:
    assert "a process that folded a chunk died: is there memory enough" in refusal(
        InputError, learn_files, engines.on_processes(2), deadly(os.getpid()), lake
    )
    assert not multiprocessing.active_children()


def test_few_parts_wait_to_be_saved() -> None:
    """Each is some megabytes, and a store may be slow."""
    begun: list[int] = []

    def fold(chunk: Any, plan: Any) -> Any:
        begun.append(chunk)

    with ThreadPoolExecutor(4) as threads:
        engine: Any = engines.on_executor(threads, 4, fold)
        for taken, (name, _) in enumerate(engine({str(i): i for i in range(50)}, None), 1):
            assert name in map(str, range(50))
            assert len(begun) <= taken + 4
    assert sorted(begun) == list(range(50))
