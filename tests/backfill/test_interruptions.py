"""Backfills that are interrupted at a step: by another backfill, by their death, or by files that change under them."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from streampca.errors import StreampcaError
from streampca.fold import checkpoint as files
from streampca.fold.partitions import FIRST_BACKFILL
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from tests.backfill.rows import fold_here, learn_files, make_plan, make_rows, make_table, write_files
from tests.in_memory.store import Crash

D = 5
STEPS = {
    "folding": ("write", "*/parts/*.npz"),
    "merging": ("read", "*/parts/*.npz"),
    "saving": ("write", "*/backfill-0/0*.npz"),
    "deleting parts": ("delete", "*/parts/*"),
}
EXISTS = "exists, of other files or columns: give another --number, or `streampca backfill --remove 0` first"


def create_interrupted_store(folder: Path, step: str, event: Callable[[], object]) -> DirectoryStore:
    """Create a store that calls `event` once, before the first operation of a step."""
    operation, pattern = STEPS[step]
    store = DirectoryStore(folder)
    perform: Callable[..., Any] = getattr(store, operation)
    has_happened = False

    def call(name: str, *data: bytes) -> Any:
        nonlocal has_happened
        if fnmatchcase(name, pattern) and not has_happened:
            has_happened = True
            event()
        return perform(name, *data)

    setattr(store, operation, call)
    return store


def describe_outcome(store: DirectoryStore, lake: Path) -> str:
    """Run a backfill of the lake; return the number of rows that it has learned, or its error."""
    try:
        return str(learn_files(fold_here, make_plan(D), lake, store=store).fold.stats.learned)
    except StreampcaError as error:
        return str(error)


def crash() -> None:
    raise Crash


def read_checkpoint(store: Path) -> files.Checkpoint:
    return Checkpoints(DirectoryStore(store), "readings").newest(FIRST_BACKFILL)


def list_checkpoints(store: Path) -> list[Path]:
    return list(store.glob("checkpoints/readings/backfill-0/0*.npz"))


def list_parts(store: Path) -> list[Path]:
    return list(store.glob("checkpoints/readings/backfill-0/parts/*"))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    Y = make_rows(900, d=D)
    Y[7] = np.inf
    return write_files(tmp_path_factory.mktemp("interrupted") / "lake", Y)


@pytest.fixture(scope="module")
def alone(lake: Path) -> bytes:
    """The checkpoint of a backfill that nothing disturbs."""
    return files.encode(learn_files(fold_here, make_plan(D), lake))


@pytest.mark.parametrize("step", STEPS)
def test_two_of_the_same_files_at_once_are_one(lake: Path, alone: bytes, tmp_path: Path, step: str) -> None:
    others: list[str] = []
    first = create_interrupted_store(
        tmp_path, step, lambda: others.append(describe_outcome(DirectoryStore(tmp_path), lake))
    )
    assert [describe_outcome(first, lake), *others] == ["899", "899"]
    assert files.encode(read_checkpoint(tmp_path)) == alone
    assert not list_parts(tmp_path) or step == "folding"  # its parts, written after the other had ended


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("n", [900, 2000])
def test_two_of_other_files_at_once_do_not_undo_each_other(lake: Path, tmp_path: Path, step: str, n: int) -> None:
    """Whoever comes second is refused, also with as many rows, so that both would have one name, or with more."""
    other = write_files(tmp_path / "other", make_rows(n, seed=1, d=D))
    store = tmp_path / "store"
    of_second: list[str] = []
    of_first = describe_outcome(
        create_interrupted_store(store, step, lambda: of_second.append(describe_outcome(DirectoryStore(store), other))),
        lake,
    )
    won, refused = [of_first, *of_second] if step in ("saving", "deleting parts") else [*of_second, of_first]
    assert won == ("899" if won is of_first else str(n))
    assert EXISTS in refused
    assert read_checkpoint(store).fold.stats.learned == int(won)
    assert len(list_checkpoints(store)) == 1


def test_parts_that_are_deleted_while_they_are_merged_are_learned_again(lake: Path, tmp_path: Path) -> None:
    store = create_interrupted_store(tmp_path, "merging", lambda: [path.unlink() for path in list_parts(tmp_path)])
    assert "were deleted while they were merged: run it again" in describe_outcome(store, lake)
    assert describe_outcome(store, lake) == "899"


@pytest.mark.parametrize(("change", "n"), [("corrected", 300), ("grown", 450), ("shrunk", 150), ("deleted", 0)])
@pytest.mark.parametrize("killed", [False, True])
def test_files_that_change_are_not_mixed(tmp_path: Path, change: str, n: int, killed: bool) -> None:
    """While it runs it ends; one that was interrupted learns the corrected files alone."""
    lake = write_files(tmp_path / "lake", make_rows(900, d=D), group=100)
    store = tmp_path / "store"
    Y = make_rows(n, seed=5, d=D)

    def change_files() -> None:
        for path in sorted(lake.iterdir()):
            path.unlink() if change == "deleted" else pq.write_table(make_table(Y), path, row_group_size=100)
        if killed:
            crash()

    running = create_interrupted_store(store, "folding", change_files)
    if killed:
        with pytest.raises(Crash):
            describe_outcome(running, lake)
    else:
        text = describe_outcome(running, lake)
        assert ".parquet has changed since this command began: run it again when nothing writes to it" in text
        assert not list_checkpoints(store)
    if change == "deleted":
        assert "no rows in " in describe_outcome(DirectoryStore(store), lake)
        return
    assert describe_outcome(DirectoryStore(store), lake) == str(3 * n)
    np.testing.assert_allclose(read_checkpoint(store).fold.state.mean, Y.mean(axis=0), rtol=1e-9)
