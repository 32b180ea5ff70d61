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
from tests.backfill.rows import backfill_of, here, learned, rows, table, write
from tests.in_memory.store import Crash

D = 5
STEPS = {
    "folding": ("write", "*/parts/*.npz"),
    "merging": ("read", "*/parts/*.npz"),
    "saving": ("write", "*/backfill-0/0*.npz"),
    "deleting parts": ("delete", "*/parts/*"),
}
EXISTS = "exists, of other files or columns: give another --number, or `streampca backfill --remove 0` first"


def interrupted(folder: Path, step: str, event: Callable[[], object]) -> DirectoryStore:
    """A store that calls `event` once, before the first operation of a step."""
    (operation, pattern), events, store = STEPS[step], [event], DirectoryStore(folder)
    perform: Callable[..., Any] = getattr(store, operation)

    def call(name: str, *data: bytes) -> Any:
        if fnmatchcase(name, pattern) and events:
            events.pop()()
        return perform(name, *data)

    setattr(store, operation, call)
    return store


def outcome(store: DirectoryStore, lake: Path) -> str:
    """Number of learned rows of a backfill of the lake, or its error."""
    try:
        return str(learned(here, backfill_of(D), lake, store=store).fold.stats.learned)
    except StreampcaError as error:
        return str(error)


def die() -> None:
    raise Crash


def saved(store: Path) -> files.Checkpoint:
    return Checkpoints(DirectoryStore(store), "readings").newest(FIRST_BACKFILL)


def checkpoints(store: Path) -> list[Path]:
    return list(store.glob("checkpoints/readings/backfill-0/0*.npz"))


def parts(store: Path) -> list[Path]:
    return list(store.glob("checkpoints/readings/backfill-0/parts/*"))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    Y = rows(900, d=D)
    Y[7] = np.inf
    return write(tmp_path_factory.mktemp("interrupted") / "lake", Y)


@pytest.fixture(scope="module")
def alone(lake: Path) -> bytes:
    """The checkpoint of a backfill that nothing disturbs."""
    return files.encode(learned(here, backfill_of(D), lake))


@pytest.mark.parametrize("step", STEPS)
def test_two_of_the_same_files_at_once_are_one(lake: Path, alone: bytes, tmp_path: Path, step: str) -> None:
    others: list[str] = []
    first = interrupted(tmp_path, step, lambda: others.append(outcome(DirectoryStore(tmp_path), lake)))
    assert [outcome(first, lake), *others] == ["899", "899"]
    assert files.encode(saved(tmp_path)) == alone
    assert not parts(tmp_path) or step == "folding"  # its parts, written after the other had ended


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("n", [900, 2000])
def test_two_of_other_files_at_once_do_not_undo_each_other(lake: Path, tmp_path: Path, step: str, n: int) -> None:
    """Whoever comes second is refused, also with as many rows, so that both would have one name, or with more."""
    other, store, of_second = write(tmp_path / "other", rows(n, seed=1, d=D)), tmp_path / "store", list[str]()
    of_first = outcome(interrupted(store, step, lambda: of_second.append(outcome(DirectoryStore(store), other))), lake)
    won, refused = [of_first, *of_second] if step in ("saving", "deleting parts") else [*of_second, of_first]
    assert won == ("899" if won is of_first else str(n))
    assert EXISTS in refused
    assert saved(store).fold.stats.learned == int(won)
    assert len(checkpoints(store)) == 1


def test_parts_that_are_deleted_while_they_are_merged_are_learned_again(lake: Path, tmp_path: Path) -> None:
    store = interrupted(tmp_path, "merging", lambda: [path.unlink() for path in parts(tmp_path)])
    assert "were deleted while they were merged: run it again" in outcome(store, lake)
    assert outcome(store, lake) == "899"


@pytest.mark.parametrize(("change", "n"), [("corrected", 300), ("grown", 450), ("shrunk", 150), ("deleted", 0)])
@pytest.mark.parametrize("killed", [False, True])
def test_files_that_change_are_not_mixed(tmp_path: Path, change: str, n: int, killed: bool) -> None:
    """While it runs it ends; one that was interrupted learns the corrected files alone."""
    lake, store, Y = write(tmp_path / "lake", rows(900, d=D), group=100), tmp_path / "store", rows(n, seed=5, d=D)

    def change_files() -> None:
        for path in sorted(lake.iterdir()):
            path.unlink() if change == "deleted" else pq.write_table(table(Y), path, row_group_size=100)
        if killed:
            die()

    running = interrupted(store, "folding", change_files)
    if killed:
        with pytest.raises(Crash):
            outcome(running, lake)
    else:
        text = outcome(running, lake)
        assert ".parquet has changed since this command began: run it again when nothing writes to it" in text
        assert not checkpoints(store)
    if change == "deleted":
        assert "no rows in " in outcome(DirectoryStore(store), lake)
        return
    assert outcome(DirectoryStore(store), lake) == str(3 * n)
    np.testing.assert_allclose(saved(store).fold.state.mean, Y.mean(axis=0), rtol=1e-9)
