"""Backfills in processes of their own: two at once, killed ones, and files that change under them."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from streampca.fold import checkpoint as files
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.partitions import FIRST_BACKFILL
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from tests.backfill.paused import D, Process
from tests.backfill.rows import rows, table, write

STEPS = {
    "folding": ("write", "*/parts/*.npz"),
    "merging": ("read", "*/parts/*.npz"),
    "saving": ("write", "*/backfill-0/0*.npz"),
    "deleting parts": ("delete", "*/parts/*"),
}
EXISTS = "exists, of other files or columns: give another --number, or `streampca backfill --remove 0` first"


def saved(store: Path) -> Checkpoint | None:
    return Checkpoints(DirectoryStore(store), "readings").newest(FIRST_BACKFILL)


def parts(store: Path) -> list[Path]:
    return list(store.glob("checkpoints/readings/backfill-0/parts/*"))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    Y = rows(900, d=D)
    Y[7] = np.inf
    return write(tmp_path_factory.mktemp("processes") / "lake", Y)


@pytest.fixture(scope="module")
def alone(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The checkpoint of one that nothing disturbs."""
    store = tmp_path_factory.mktemp("alone")
    assert Process(store, lake).end() == (0, "899")
    found = saved(store)
    assert found
    return files.encode(found)


@pytest.mark.parametrize("step", STEPS)
def test_two_of_the_same_files_at_once_are_one(lake: Path, alone: bytes, tmp_path: Path, step: str) -> None:
    first = Process(tmp_path, lake, *STEPS[step])
    assert Process(tmp_path, lake).end() == (0, "899")
    assert first.end() == (0, "899")
    found = saved(tmp_path)
    assert found
    assert files.encode(found) == alone
    assert not parts(tmp_path) or step == "folding"  # its parts, written after the other had ended


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("more", [False, True])
def test_two_of_other_files_at_once_do_not_undo_each_other(lake: Path, tmp_path: Path, step: str, more: bool) -> None:
    """Whoever comes second is refused, also with as many rows, so that both would have one name, or with more."""
    other = write(tmp_path / "other", rows(2000 if more else 900, seed=1, d=D))
    store = tmp_path / "store"
    first = Process(store, lake, *STEPS[step])
    of_second, of_first = Process(store, other).end(), first.end()
    winner, (code, text) = (of_first, of_second) if step in ("saving", "deleting parts") else (of_second, of_first)
    assert winner == (0, "899" if winner is of_first else str(2000 if more else 900))
    assert code == 2
    assert EXISTS in text
    found = saved(store)
    assert found
    assert found.fold.stats.learned == int(winner[1])
    assert len(list(store.glob("checkpoints/readings/backfill-0/0*.npz"))) == 1


@pytest.mark.parametrize("step", STEPS)
def test_one_that_is_killed_continues_or_is_done(lake: Path, alone: bytes, tmp_path: Path, step: str) -> None:
    Process(tmp_path, lake, *STEPS[step]).kill()
    assert (saved(tmp_path) is not None) == (step == "deleting parts")
    for _ in range(2):  # the second says it again
        assert Process(tmp_path, lake).end() == (0, "899")
        found = saved(tmp_path)
        assert found
        assert files.encode(found) == alone
        assert not parts(tmp_path)
        [rejects] = tmp_path.glob("checkpoints/readings/backfill-0/rejects.parquet")
        assert pq.read_table(rejects)["row"].to_pylist() == [7]


@pytest.mark.parametrize("change", ["corrected", "grown", "shrunk", "deleted"])
@pytest.mark.parametrize("killed", [False, True])
def test_files_that_change_are_not_mixed(tmp_path: Path, change: str, killed: bool) -> None:
    """While it runs it ends; one that was interrupted learns the corrected files alone."""
    lake, store = write(tmp_path / "lake", rows(900, d=D), group=100), tmp_path / "store"
    running = Process(store, lake, *STEPS["folding"])
    if killed:
        running.kill()
    n = {"corrected": 300, "grown": 450, "shrunk": 150, "deleted": 0}[change]
    for path in sorted(lake.iterdir()):
        path.unlink() if change == "deleted" else pq.write_table(table(rows(n, seed=5, d=D)), path, row_group_size=100)
    if not killed:
        code, text = running.end()
        assert code == 2
        assert ".parquet has changed since this command began: run it again when nothing writes to it" in text
        assert saved(store) is None
    code, text = Process(store, lake).end()
    if change == "deleted":
        assert (code, "no .parquet, .arrow, .csv or .npy files" in text) == (2, True)
        return
    assert (code, text) == (0, str(3 * n))
    found = saved(store)
    assert found
    np.testing.assert_allclose(found.fold.state.mean, rows(n, seed=5, d=D).mean(axis=0), rtol=1e-9)
