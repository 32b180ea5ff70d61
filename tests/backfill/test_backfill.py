"""A backfill learns all rows, to the same bits on every engine and with every number of workers."""

import itertools
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dask import distributed
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from streampca.backfill import BackfillPlan, engines, fold_batches, merge
from streampca.backfill.engines import Engine, Parts
from streampca.backfill.execute import execute
from streampca.backfill.folding import Part
from streampca.cli import backfill as backfill_command
from streampca.errors import InputError, SettingsError
from streampca.files.chunks import Chunk, chunks_of, columns_of, read
from streampca.fold import checkpoint as files
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.partitions import FIRST_BACKFILL
from streampca.formats.arrow import fixed_size_lists
from streampca.pca.axes import model_of
from streampca.settings.store import StoreSettings
from streampca.stores.base import Store
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from streampca.worker.publisher import Publisher
from tests.backfill.rows import START_MS, K, backfill_of, rows, table, write
from tests.command_line import assert_one_line
from tests.command_line import run as run_command


def here(chunks: Mapping[str, Chunk], backfill: BackfillPlan) -> Parts:
    """In this process, the last chunk first."""
    for name, chunk in reversed(chunks.items()):
        yield name, engines.fold_chunk(chunk, backfill)


def learned(engine: Engine, backfill: BackfillPlan, *sources: Path, store: Store | None = None) -> Checkpoint:
    return execute(store or MemoryStore(), backfill, chunks_of([*map(str, sources)]), engine, lambda done: None)[0]


def excess(found: Checkpoint, Y: np.ndarray) -> float:
    """Percent of the loss of batch PCA."""
    model, pca = model_of(found.fold.state, K), PCA(K).fit(Y)
    loss, least = (((Y - back) ** 2).sum() for back in (
        model.reconstruct(model.project(Y)[0]), pca.inverse_transform(pca.transform(Y)),
    ))  # fmt: skip
    return float(100 * (loss / least - 1))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("backfill") / "lake", rows(4000))


def test_it_is_as_accurate_as_batch_pca(lake: Path) -> None:
    found = learned(here, backfill_of(), lake)
    assert (found.fold.stats.learned, found.fold.position, found.fold.state.weight) == (4000, 4000, 4000.0)
    np.testing.assert_allclose(found.fold.state.mean, rows(4000).mean(axis=0), rtol=1e-9)
    assert excess(found, rows(4000)) < 0.01


def test_processes_dask_and_spark_give_the_same_bits(lake: Path, spark: Any) -> None:
    expected = files.encode(learned(here, backfill_of(), lake))
    for workers in (1, 2):
        assert files.encode(learned(engines.on_processes(workers), backfill_of(), lake)) == expected
    local: Any = distributed.LocalCluster  # it has no types
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        local(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
    ):
        on_dask = engines.on_dask(cluster.scheduler_address)
        assert files.encode(learned(on_dask, backfill_of(), lake)) == expected
        with pytest.raises(InputError, match="a process that folded a chunk died: is there memory enough"):
            learned(on_dask, deadly(os.getpid()), lake)
    assert files.encode(learned(engines.on_spark(spark), backfill_of(), lake)) == expected


@dataclass(frozen=True)
class Deadly(BackfillPlan):
    """Ends every other process that unpickles it."""

    def __reduce__(self) -> Any:
        return deadly, (os.getpid(),)


def deadly(pid: int) -> BackfillPlan:
    if os.getpid() != pid:
        os._exit(9)
    return Deadly(**vars(backfill_of()))


def test_a_process_that_dies_ends_it(lake: Path) -> None:
    with pytest.raises(InputError, match="a process that folded a chunk died: is there memory enough"):
        learned(engines.on_processes(2), deadly(os.getpid()), lake)
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


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), st.randoms())
@settings(max_examples=20, deadline=None)
def test_where_batches_are_cut_and_who_folds_first_changes_no_bit(sizes: list[int], random: Any) -> None:
    Y, backfill = rows(900, d=20), backfill_of(20)
    cuts = np.cumsum(sizes) % 300
    chunks = [table(Y[start : start + 300], start) for start in (0, 300, 600)]
    parts: dict[int, Part] = {}
    for i in random.sample(range(3), 3):
        bounds = sorted({0, *cuts.tolist(), 300})
        parts[i] = fold_batches(
            (batch for a, b in itertools.pairwise(bounds) for batch in chunks[i][a:b].to_batches()), backfill
        )
    whole = [fold_batches(chunk.to_batches(), backfill) for chunk in chunks]
    assert files.encode(merge([parts[i] for i in range(3)], backfill)) == files.encode(merge(whole, backfill))


def test_one_that_is_interrupted_continues(lake: Path, tmp_path: Path) -> None:
    store, chunks = MemoryStore(), chunks_of([str(lake)])
    asked: list[str] = []

    def breaks(chunks: Mapping[str, Chunk], backfill: BackfillPlan) -> Iterator[tuple[str, Part]]:
        for name, part in here(chunks, backfill):
            asked.append(name)
            if len(asked) == 4:
                raise KeyboardInterrupt
            yield name, part

    with pytest.raises(KeyboardInterrupt):
        execute(store, backfill_of(), chunks, breaks, lambda done: None)
    assert Checkpoints(store, "readings").newest(2**31) is None
    asked.clear()
    asked += [""] * 10
    found = learned(breaks, backfill_of(), lake, store=store)
    assert len(asked) - 10 == len(chunks) - 3
    assert files.encode(found) == files.encode(learned(here, backfill_of(), lake))
    folder = "checkpoints/readings/backfill-0"
    assert store.names(folder) == [f"{folder}/{name}" for name in (f"{4000:020d}.npz", "rejects.parquet", "sources")]
    asked.clear()
    assert files.encode(learned(breaks, backfill_of(), lake, store=store)) == files.encode(found)  # it is done
    other = write(tmp_path / "other", rows(100))
    with pytest.raises(SettingsError, match="exists, of other files or columns: give another --number"):
        learned(here, backfill_of(), other, store=store)


def _killed(*_: object) -> Any:
    raise KeyboardInterrupt


def test_other_settings_than_those_of_the_store_are_refused_before_anything_is_learned(lake: Path) -> None:
    """Every worker of the store would end."""
    store = MemoryStore()
    learned(here, backfill_of(), lake, store=store)
    other = replace(backfill_of(half_life_messages=300.0), number=1)
    named = r"backfill-0 .* half_life_messages=None \(now 300.0\); .*`streampca backfill --remove 0`"
    with pytest.raises(SettingsError, match=named):
        learned(_killed, other, lake, store=store)


def test_settings_are_compared_again_before_saving(lake: Path) -> None:
    """A worker may have begun while it folded."""
    store, other = MemoryStore(), replace(backfill_of(half_life_messages=300.0), number=1)

    def meanwhile(chunks: Mapping[str, Chunk], backfill: BackfillPlan) -> Parts:
        yield from here(chunks, backfill)
        learned(here, backfill_of(), lake, store=store)

    with pytest.raises(SettingsError, match=r"half_life_messages=None \(now 300.0\)"):
        learned(meanwhile, other, lake, store=store)
    assert Checkpoints(store, "readings").newest(FIRST_BACKFILL + 1) is None


def test_a_file_counts_once_however_it_is_spelled(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lake.parent)
    (lake.parent / "link").symlink_to(lake)
    spelled = [str(lake), lake.name, f"./{lake.name}/../{lake.name}", "link", lake.as_uri()]
    assert chunks_of(spelled) == chunks_of([str(lake)])


def test_a_link_says_by_its_own_name_what_the_file_is(tmp_path: Path) -> None:
    """Caches of downloads name the files themselves by digests. Two links to one file count once."""
    pq.write_table(table(rows(300, d=5)), tmp_path / "5d41402a")
    (tmp_path / "lake").mkdir()
    for name in ("a.parquet", "b.parquet"):
        (tmp_path / "lake" / name).symlink_to(tmp_path / "5d41402a")
    assert learned(here, backfill_of(5), tmp_path / "lake").fold.stats.learned == 300


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_file_that_changes_is_refused(tmp_path: Path, when: str) -> None:
    """Also if what is left of it cannot be read."""
    pq.write_table(table(rows(20_000)), path := tmp_path / "a.parquet", row_group_size=20_000)
    [chunk] = chunks_of([str(path)])

    def change() -> None:
        pq.write_table(table(rows(300, seed=1)), path)
        os.utime(path, ns=(0, chunk.changed_ns + 1))

    batches = read(chunk, backfill_of().read)
    if when == "while":
        next(batches)
    change()
    with pytest.raises(InputError, match=rf"^{path} has changed since this command began: run it again"):
        list(batches)


@pytest.mark.parametrize("array", [np.zeros(9), np.zeros((2, 3, 4)), np.zeros((3, 2), complex), np.array([["a"]])])
def test_an_npy_file_of_something_else_is_refused(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array)
    text = rf"^{tmp_path}/a\.npy must hold real numbers of shape \(rows, dimensions\), not .* of shape \("
    with pytest.raises(InputError, match=text):
        chunks_of([str(tmp_path)])


def test_an_npy_file_that_is_an_archive_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", Y=rows(9, d=5))
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(InputError, match=r"a\.npy"):
        chunks_of([str(tmp_path)])


def test_a_csv_file_may_begin_with_whole_numbers(tmp_path: Path) -> None:
    """More of them than anybody reads to guess a type."""
    lines = ["f_0,f_1,note", *["1,2,7"] * 400_000, "0.5,3,text of a column that is not read"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    (tmp_path / "0-empty.csv").write_text(lines[0] + "\n")
    backfill = BackfillPlan("readings", backfill_of(2).fold_config, columns_of(chunks_of([str(tmp_path)])[0], "f_*"))
    assert learned(here, backfill, tmp_path).fold.stats.learned == 400_001


def test_the_past_is_forgotten_as_a_stream_forgets_it(tmp_path: Path) -> None:
    Y = np.vstack([rows(2000), rows(2000, seed=1) * 3])
    write(tmp_path / "lake", Y)
    for halving in ({"half_life_messages": 300.0}, {"half_life_seconds": 300.0}):
        found = learned(here, backfill_of(**halving), tmp_path / "lake").fold
        assert found.state.weight == pytest.approx(300 / np.log(2), rel=0.2)
        weights = 2.0 ** (-np.arange(len(Y))[::-1] / 300)
        np.testing.assert_allclose(found.state.mean, np.average(Y, axis=0, weights=weights), atol=0.3)
    assert found.stats.last_ms == START_MS + 3_999_000


@pytest.mark.parametrize("kind", ["time", "offsets"])
def test_history_ends_where_the_topic_begins(tmp_path: Path, kind: str) -> None:
    Y = rows(1000)
    more = {"partition": pa.array(np.arange(1000) % 2), "offset": pa.array(np.arange(1000) // 2)}
    pq.write_table(table(Y, **more), tmp_path / "lake.parquet")
    until: dict[str, Any] = {"until_ms": START_MS + 600_000}
    if kind == "offsets":
        until = {"until_offsets": {0: 300, 1: 300}}
    found = learned(here, backfill_of(**until), tmp_path / "lake.parquet")
    assert found.fold.stats.learned == 600
    np.testing.assert_allclose(found.fold.state.mean, Y[:600].mean(axis=0), rtol=1e-9)
    assert found.until == (str(START_MS + 600_000) if kind == "time" else "0:300,1:300")


def test_rows_that_cannot_be_learned_are_counted_and_named(tmp_path: Path) -> None:
    good = rows(500, d=3).tolist()
    bad: list[Any] = [None, [1.0, 2.0], [1.0, None, 2.0], [float("inf"), 0.0, 0.0], [1e200, 0.0, 0.0]]
    lists = pa.array(good[:100] + bad + good[100:], pa.list_(pa.float64()))
    pq.write_table(pa.table({"v": lists}), tmp_path / "v.parquet", row_group_size=64)
    backfill = BackfillPlan("readings", backfill_of(3).fold_config, ("v",))
    chunks = chunks_of([str(tmp_path / "v.parquet")])
    found, rejects = execute(MemoryStore(), backfill, chunks, here, lambda done: None)
    reasons = ["no_value", "wrong_length", "not_finite", "not_finite", "too_large"]
    assert found.fold.stats.learned == 500
    assert found.fold.stats.rejected == {"no_value": 1, "wrong_length": 1, "not_finite": 2, "too_large": 1}
    assert rejects["reason"].to_pylist() == reasons
    assert rejects["row"].to_pylist() == [36, 37, 38, 39, 40]
    assert set(rejects["chunk"].to_pylist()) == {f"{tmp_path / 'v.parquet'}#1"}


def test_files_and_tables_of_every_kind_hold_the_same_rows(tmp_path: Path) -> None:
    Y = rows(700, d=5)
    lists = pa.table({"embedding": fixed_size_lists(Y)})
    numbers = pa.table({f"f_{i}": Y[:, i] for i in range(5)})
    pq.write_table(lists, tmp_path / "a.parquet")
    np.save(tmp_path / "b.npy", Y)
    with pa.OSFile(str(tmp_path / "c.arrow"), "wb") as file, pa.ipc.new_file(file, lists.schema) as writer:
        writer.write_table(lists)
    pa.csv.write_csv(numbers, tmp_path / "d.csv")
    write_deltalake(tmp_path / "e", lists)
    pq.write_table(numbers, tmp_path / "f.parquet")
    found = []
    for name, columns in (("a.parquet", ("embedding",)), ("b.npy", ("vector",)), ("c.arrow", ("embedding",)),
                          ("d.csv", ("f_*",)), ("e", ("embedding",)), ("f.parquet", ("f_*",))):  # fmt: skip
        chunks = chunks_of([str(tmp_path / name)])
        backfill = BackfillPlan("readings", backfill_of(5).fold_config, columns_of(chunks[0], columns[0]))
        found.append(files.encode(execute(MemoryStore(), backfill, chunks, here, lambda done: None)[0]))
    assert len(set(found)) == 1


def test_tables_of_iceberg_are_refused() -> None:
    with pytest.raises(InputError, match=r"v1\.metadata\.json: of tables those of Delta are read"):
        chunks_of(["lake/v1.metadata.json"])


def test_rows_that_do_not_say_whether_they_are_history_are_rejected(tmp_path: Path) -> None:
    Y, number = rows(500, d=5), np.arange(500)
    places = {"partition": pa.array([0] * 500), "offset": pa.array([*number[:-1].tolist(), None], pa.int64())}
    times = pa.array([None, *(START_MS + 1000 * number[1:]).tolist()], pa.timestamp("ms"))
    pq.write_table(table(Y, **places).set_column(1, "time", times), tmp_path / "lake.parquet", row_group_size=200)
    for until, row in (({"until_ms": START_MS + 450_000}, 0), ({"until_offsets": {0: 450}}, 499)):
        backfill = backfill_of(5, **until)
        found, rejects = execute(MemoryStore(), backfill, chunks_of([str(tmp_path)]), here, lambda done: None)
        assert found.fold.stats.learned == 450 - (row == 0)
        assert found.fold.stats.rejected == {"no_place": 1}
        assert (rejects["row"].to_pylist(), rejects["chunk"][0].as_py()[-1]) == ([row % 200], str(row // 200))


def test_rejects_are_named_by_their_row_of_the_piece(tmp_path: Path) -> None:
    """Not by their row of what is history."""
    Y = rows(300, d=5)
    Y[250] = np.inf
    columns = {"partition": pa.array(np.arange(300) % 2), "offset": pa.array(np.arange(300) // 2)}
    pq.write_table(table(Y, **columns), tmp_path / "lake.parquet")
    backfill = backfill_of(5, until_offsets={0: 140})
    _, rejects = execute(MemoryStore(), backfill, chunks_of([str(tmp_path)]), here, lambda done: None)
    assert rejects["row"].to_pylist() == [250]


def test_what_is_not_data_is_not_learned(tmp_path: Path) -> None:
    """Files that engines have not committed, hidden ones, and empty ones."""
    lake = write(tmp_path / "lake", rows(900, d=5))
    for other in ("_temporary/0/part.parquet", ".hidden.parquet"):
        (lake / other).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table(rows(100, d=5)), lake / other)
    pq.write_table(table(rows(1, d=5)).slice(1), lake / "0-empty.parquet")
    assert columns_of(chunks_of([str(lake)])[0], "emb*") == ("embedding",)
    assert learned(here, backfill_of(5), lake).fold.stats.learned == 900


def test_a_delta_table_with_deletion_vectors_is_refused(tmp_path: Path) -> None:
    """Its files hold rows that were deleted."""
    lists = pa.table({"embedding": fixed_size_lists(rows(10, d=5))})
    write_deltalake(tmp_path / "lake", lists, configuration={"delta.enableDeletionVectors": "true"})
    with pytest.raises(InputError, match="is more than its files"):
        chunks_of([str(tmp_path / "lake")])


def test_a_backfill_without_a_row_is_not_saved(tmp_path: Path) -> None:
    """With corrected settings it can be started again."""
    store, lake = MemoryStore(), tmp_path / "lake"
    lake.mkdir()
    pq.write_table(pa.table({"embedding": pa.array(rows(300, d=5).tolist())}), lake / "lists.parquet")
    with pytest.raises(InputError, match="no row was learned; the first: 5 numbers, not 7"):
        learned(here, BackfillPlan("readings", backfill_of(7).fold_config, ("embedding",)), lake, store=store)
    found = learned(here, BackfillPlan("readings", backfill_of(5).fold_config, ("embedding",)), lake, store=store)
    assert found.fold.stats.learned == 300


def test_chunks_of_few_rows_are_forgotten_too(tmp_path: Path) -> None:
    """Fewer than a stream's time needs."""
    lake = write(tmp_path / "lake", rows(600, d=5), group=20)
    found = learned(here, backfill_of(5, half_life_seconds=100.0), lake)
    assert found.fold.state.weight == pytest.approx(100 / np.log(2), rel=0.2)


def test_errors_say_what_is_wrong(lake: Path, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    for source, text in ((tmp_path / "none", "there is no"), (tmp_path / "empty", r"no \.parquet, \.arrow")):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(InputError, match=text):
            chunks_of([str(source)])
    with pytest.raises(InputError, match=r"x\.parquet cannot be read"):
        chunks_of([str(tmp_path / "x.parquet")])
    with pytest.raises(InputError, match="there is no column other; there are"):
        learned(here, BackfillPlan("readings", backfill_of().fold_config, ("embedding",), "other"), lake)


@pytest.mark.parametrize("broken", [False, True])
def test_a_backfill_is_removed_once_it_has_asked(tmp_path: Path, broken: bool) -> None:
    """Without the settings of the model, which may be what was wrong, and also if its file is damaged."""
    lake, store = write(tmp_path / "lake", rows(300, d=5)), DirectoryStore(tmp_path / "store")
    folder = tmp_path / "store" / "checkpoints" / "readings" / "backfill-0"

    def backfill(*more: object) -> subprocess.CompletedProcess[str]:
        return run_command("backfill", "--topic", "readings", "--store", tmp_path / "store", *more)

    assert_one_line(backfill("--remove", 0), "has no backfill-0 of readings", code=2)
    assert "--column" in backfill(lake).stderr
    assert "--remove takes no files" in backfill(lake, "--remove", 0).stderr
    learned(here, backfill_of(5), lake, store=store)
    [saved] = folder.glob("*.npz")
    if broken:
        saved.write_bytes(b"broken")
    assert backfill("--remove", 0).returncode != 0  # nobody answers the question
    assert saved.exists()
    command = [sys.executable, "-m", "streampca", "backfill", "--remove", "0", "--topic", "readings"]
    environment = {**os.environ, "STREAMPCA_STORE": str(tmp_path / "store")}
    answered = subprocess.run(command, input="y\n", env=environment, capture_output=True, text=True, check=True)
    assert "deleted backfill-0 of readings" in answered.stdout
    assert not [path for path in folder.rglob("*") if path.is_file()]
    other = write(tmp_path / "other", rows(400, d=5))
    assert learned(here, backfill_of(5), other, store=store).fold.stats.learned == 400


def test_what_an_interrupted_backfill_has_left_is_removed(lake: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        learned(_breaks, backfill_of(), lake, store=DirectoryStore(tmp_path))
    assert list(tmp_path.rglob("parts/*"))
    backfill_command.remove(StoreSettings(topic="readings", store=str(tmp_path)), 0, lambda question: True)
    assert not list(tmp_path.rglob("parts/*"))


def _breaks(chunks: Mapping[str, Chunk], backfill: BackfillPlan) -> Parts:
    yield next(here(chunks, backfill))
    raise KeyboardInterrupt


def test_the_next_model_does_not_contain_what_was_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has a lower version, as the stream alone has learned fewer messages."""
    store, config = DirectoryStore(tmp_path / "store"), backfill_of(5).fold_config
    lakes = [write(tmp_path / f"lake{i}", rows(n, seed=i, d=5)) for i, n in enumerate((300, 900))]
    learned(here, backfill_of(5), lakes[0], store=store)
    Publisher(Checkpoints(store, "readings"), Models(store, "readings"), config, lambda: 0.0).publish()
    learned(here, replace(backfill_of(5), number=1), lakes[1], store=store)
    publisher = Publisher(Checkpoints(store, "readings"), Models(store, "readings"), config, lambda: 0.0)
    publisher.publish()
    models = Models(store, "readings")
    assert models.versions() == [300, 1200]
    backfill_command.remove(StoreSettings(topic="readings", store=store.place), 1, lambda question: True)
    assert "deleted backfill-1 of readings, and 1 models that contained it" in " ".join(capsys.readouterr().out.split())
    publisher.publish()
    found = models.newest()
    assert found
    assert (found.version, found.positions) == (300, {FIRST_BACKFILL: 300})


@pytest.mark.parametrize("value", [0.0, None], ids=["zeros, which take no space", "others"])
def test_a_large_row_group_is_not_in_memory_at_once(tmp_path: Path, value: float | None) -> None:
    Y = rows(100_000, d=128) if value is None else np.full((100_000, 128), value)
    pq.write_table(pa.table({"embedding": fixed_size_lists(Y)}), tmp_path / "a.parquet", row_group_size=len(Y))
    [chunk] = chunks_of([str(tmp_path)])
    before = pa.total_allocated_bytes()
    batches = read(chunk, ["embedding"])
    next(batches)
    assert pa.total_allocated_bytes() - before < Y.nbytes / 2
    batches.close()  # type: ignore[attr-defined]


def test_how_well_rows_are_packed_says_nothing_of_their_memory(tmp_path: Path) -> None:
    """Parquet packs few different numbers to a thousandth; one batch of Arrow IPC may be the whole file."""
    lists = pa.table({"embedding": fixed_size_lists(np.zeros((100_000, 128)))})
    pq.write_table(lists, tmp_path / "a.parquet", row_group_size=len(lists))
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as file, pa.ipc.new_file(file, lists.schema) as writer:
        writer.write_table(lists)
    for chunk in chunks_of([str(tmp_path)]):
        lengths = [len(batch) for batch in read(chunk, ["embedding"])]
        assert sum(lengths) == 100_000
        assert max(lengths) * 128 <= 2**21
