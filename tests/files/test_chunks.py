"""Files become chunks, which are read with little memory; what is no data, or changes, is refused."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from streampca.backfill import BackfillPlan
from streampca.backfill.execute import add_names_of_dimensions
from streampca.errors import InputError
from streampca.files.chunks import chunks_of, read
from streampca.files.columns import FileOptions
from streampca.fold import checkpoint as files
from streampca.formats.arrow import column_of
from streampca.stores.memory import MemoryStore
from tests.backfill.rows import fold_here, learn_files, make_plan, make_rows, make_table, write_files
from tests.errors import refusal


def test_a_file_counts_once_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = write_files(tmp_path / "lake", make_rows(900, d=5))
    monkeypatch.chdir(lake.parent)
    (lake.parent / "link").symlink_to(lake)
    spelled = [str(lake), lake.name, f"./{lake.name}/../{lake.name}", "link", lake.as_uri()]
    assert chunks_of(spelled) == chunks_of([str(lake)])


def test_a_link_says_by_its_own_name_what_the_file_is(tmp_path: Path) -> None:
    """Caches of downloads name the files themselves by digests. Two links to one file count once."""
    pq.write_table(make_table(make_rows(300, d=5)), tmp_path / "5d41402a")
    (tmp_path / "lake").mkdir()
    for name in ("a.parquet", "b.parquet"):
        (tmp_path / "lake" / name).symlink_to(tmp_path / "5d41402a")
    assert learn_files(fold_here, make_plan(5), tmp_path / "lake").fold.stats.learned == 300


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_file_that_changes_is_refused(tmp_path: Path, when: str) -> None:
    """Also if what is left of it cannot be read."""
    pq.write_table(make_table(make_rows(20_000)), path := tmp_path / "a.parquet", row_group_size=20_000)
    [chunk] = chunks_of([str(path)])
    batches = read(chunk, make_plan().options)
    if when == "while":
        next(batches)
    pq.write_table(make_table(make_rows(300, seed=1)), path)
    os.utime(path, ns=(0, chunk.changed_ns + 1))
    text = refusal(InputError, list, batches)
    assert text.startswith(f"{path} has changed since this command began: run it again")


def test_a_csv_file_may_begin_with_many_whole_numbers(tmp_path: Path) -> None:
    """More of them than anybody reads to guess a type."""
    lines = ["f_0,f_1,note", *["1,2,7"] * 400_000, "0.5,3,text of a column that is not read"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    (tmp_path / "0-empty.csv").write_text(lines[0] + "\n")
    config = replace(make_plan(2).fold_config, names=["f_0", "f_1"])
    checkpoint = learn_files(fold_here, BackfillPlan("readings", config, FileOptions("f_*")), tmp_path)
    assert checkpoint.fold.stats.learned == 400_001


def test_temporary_hidden_and_empty_files_are_not_learned(tmp_path: Path) -> None:
    """Files that engines have not committed, hidden ones, and empty ones."""
    lake = write_files(tmp_path / "lake", make_rows(900, d=5))
    for other in ("_temporary/0/part.parquet", ".hidden.parquet"):
        (lake / other).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(make_table(make_rows(100, d=5)), lake / other)
    pq.write_table(make_table(make_rows(1, d=5)).slice(1), lake / "0-empty.parquet")
    assert learn_files(fold_here, make_plan(5), lake).fold.stats.learned == 900


def test_tables_whose_files_hold_deleted_rows_are_refused(tmp_path: Path) -> None:
    """Those of Iceberg, and of Delta with deletion vectors: files hold rows that were deleted."""
    assert "v1.metadata.json is an Iceberg table, and only Delta tables can be read" in refusal(
        InputError, chunks_of, ["lake/v1.metadata.json"]
    )
    lists = pa.table({"embedding": column_of(make_rows(10, d=5))})
    write_deltalake(tmp_path / "lake", lists, configuration={"delta.enableDeletionVectors": "true"})
    assert "is more than its files" in refusal(InputError, chunks_of, [str(tmp_path / "lake")])


def test_files_and_tables_of_every_kind_hold_the_same_rows(tmp_path: Path) -> None:
    Y = make_rows(700, d=5)
    lists = pa.table({"embedding": column_of(Y)})
    numbers = pa.table({f"f_{i}": Y[:, i] for i in range(5)})
    pq.write_table(lists, tmp_path / "a.parquet")
    np.save(tmp_path / "b.npy", Y)
    write_arrow(tmp_path / "c.arrow", lists)
    pa.csv.write_csv(numbers, tmp_path / "d.csv")
    write_deltalake(tmp_path / "e", lists)
    pq.write_table(numbers, tmp_path / "f.parquet")
    checkpoints = []
    for name, field in (("a.parquet", "embedding"), ("b.npy", ""), ("c.arrow", "embedding"),
                        ("d.csv", "f_*"), ("e", "embedding"), ("f.parquet", "f_*")):  # fmt: skip
        backfill = BackfillPlan("readings", make_plan(5).fold_config, FileOptions(field))
        backfill, _ = add_names_of_dimensions(MemoryStore(), backfill, chunks_of([str(tmp_path / name)]))
        checkpoints.append(files.encode(replace(learn_files(fold_here, backfill, tmp_path / name), names=None)))
    assert len(set(checkpoints)) == 1


@pytest.mark.parametrize("kind", ["zeros, which take no space", "others", "one batch of Arrow IPC"])
def test_a_large_row_group_is_not_in_memory_at_once(tmp_path: Path, kind: str) -> None:
    """How well rows are packed says nothing of their memory."""
    Y = make_rows(100_000, d=128) if kind == "others" else np.zeros((100_000, 128))
    lists = pa.table({"embedding": column_of(Y)})
    if "Arrow" in kind:
        write_arrow(tmp_path / "a.arrow", lists)
    else:
        pq.write_table(lists, tmp_path / "a.parquet", row_group_size=len(Y))
    [chunk] = chunks_of([str(tmp_path)])
    before = pa.total_allocated_bytes()
    batches = read(chunk, BackfillPlan("readings", make_plan(128).fold_config, FileOptions("embedding")).options)
    lengths = [len(next(batches).row_vectors.counts)]
    assert "Arrow" in kind or pa.total_allocated_bytes() - before < Y.nbytes / 2
    lengths += [len(batch.row_vectors.counts) for batch in batches]
    assert sum(lengths) == len(Y)
    assert max(lengths) * 128 <= 2**21


def write_arrow(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
