"""A backfill continues after an interruption, and is saved once, if its settings are those of the store."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampca.backfill import BackfillPlan
from streampca.backfill.engines import Parts
from streampca.backfill.execute import _make_chunk_key, add_names_of_dimensions, execute
from streampca.errors import InputError, SettingsError
from streampca.files.chunks import Chunk, chunks_of
from streampca.files.columns import FileOptions
from streampca.fold import checkpoint as files
from streampca.fold.fold import FoldConfig
from streampca.fold.partitions import FIRST_BACKFILL
from streampca.pca.learning import LearningConfig
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.memory import MemoryStore
from tests.backfill.rows import START_MS, D, fold_here, learn_files, make_plan, make_rows, make_table
from tests.errors import refusal


def test_one_that_is_interrupted_continues(lake: Path) -> None:
    store, chunks = MemoryStore(), chunks_of([str(lake)])
    asked: list[int] = []

    def breaks(chunks: Mapping[str, Chunk], backfill: BackfillPlan) -> Parts:
        asked.append(len(chunks))
        yield from itertools.islice(fold_here(chunks, backfill), 3)
        if len(asked) == 1:
            raise KeyboardInterrupt
        yield from fold_here(dict(list(chunks.items())[:-3]), backfill)

    with pytest.raises(KeyboardInterrupt):
        learn_files(breaks, make_plan(), lake, store=store)
    assert Checkpoints(store, "readings").newest(FIRST_BACKFILL) is None
    expected = files.encode(learn_files(fold_here, make_plan(), lake))
    for _ in range(2):  # then it is done
        assert files.encode(learn_files(breaks, make_plan(), lake, store=store)) == expected
    assert asked == [len(chunks), len(chunks) - 3]
    folder = "checkpoints/readings/backfill-0"
    assert store.names(folder) == [f"{folder}/{name}" for name in (f"{4000:020d}.npz", "rejects.parquet", "sources")]


def test_names_of_the_dimensions_must_agree_with_the_store_but_may_be_missing(lake: Path) -> None:
    names = [f"sensor {i}" for i in range(D)]

    def backfill(number: int, names: list[str] | None, field: str = "") -> BackfillPlan:
        plan = replace(make_plan(), number=number)
        return replace(plan, fold_config=replace(plan.fold_config, names=names, field=field))

    store = MemoryStore()
    assert learn_files(fold_here, backfill(0, None), lake, store=store).names is None
    assert learn_files(fold_here, backfill(1, names, field="elsewhere"), lake, store=store).names == names
    learn_files(fold_here, backfill(2, None), lake, store=store)
    with pytest.raises(SettingsError, match=r"names=sensor 0, .*now sensor 299"):
        learn_files(fold_here, backfill(3, names[::-1]), lake, store=store)


@pytest.mark.parametrize("when", ["before", "while it folds"])
def test_other_settings_than_those_of_the_store_are_refused(lake: Path, when: str) -> None:
    """Before anything is learned, and again before saving: every worker of the store would end."""
    store, other = MemoryStore(), replace(make_plan(half_life_messages=300.0), number=1)

    def fold(chunks: Mapping[str, Chunk], backfill: BackfillPlan) -> Parts:
        assert when != "before"
        yield from fold_here(chunks, backfill)
        learn_files(fold_here, make_plan(), lake, store=store)

    if when == "before":
        learn_files(fold_here, make_plan(), lake, store=store)
    named = r"backfill-0 .* half_life_messages=None \(now 300.0\); .*`streampca backfill --remove 0`"
    assert re.search(named, refusal(SettingsError, learn_files, fold, other, lake, store=store))
    assert Checkpoints(store, "readings").newest(FIRST_BACKFILL + 1) is None


def test_a_backfill_without_a_row_is_not_saved(tmp_path: Path) -> None:
    """With corrected settings it can be started again."""
    store, lake = MemoryStore(), tmp_path / "lake"
    lake.mkdir()
    pq.write_table(pa.table({"embedding": pa.array(make_rows(300, d=5).tolist())}), lake / "lists.parquet")
    wrong_plan = BackfillPlan("readings", make_plan(7).fold_config, FileOptions("embedding"))
    with pytest.raises(InputError, match=r"of 300 rows 0 are .*, 300 were rejected, the first: 5 numbers, not 7"):
        learn_files(fold_here, wrong_plan, lake, store=store)
    corrected_plan = BackfillPlan("readings", make_plan(5).fold_config, FileOptions("embedding"))
    checkpoint = learn_files(fold_here, corrected_plan, lake, store=store)
    assert checkpoint.fold.stats.learned == 300


def test_errors_say_what_is_wrong(lake: Path, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "empty").mkdir()
    for name, text in {
        "none": "there is no",
        "empty": r"no rows in .*: these files can be read: \.npy",
        "x.parquet": r"x\.parquet cannot be read",
    }.items():  # fmt: skip
        assert re.search(text, refusal(InputError, chunks_of, [str(tmp_path / name)]))
    assert "there is no column other; there are embedding, time" in refusal(
        InputError,
        learn_files,
        fold_here,
        BackfillPlan("readings", make_plan().fold_config, FileOptions("embedding"), "other"),
        lake,
    )


def test_files_are_read_by_the_names_of_the_first(tmp_path: Path) -> None:
    """Within a backfill and in the next one, of whatever kind; what lacks a name is refused."""
    Y, store = make_rows(300, d=5), MemoryStore()
    named = pa.table({f"f_{i}": Y[:, i] for i in range(5)})
    (tmp_path / "lake").mkdir()
    pq.write_table(named, tmp_path / "lake" / "a.parquet")
    pq.write_table(named.select([f"f_{i}" for i in (3, 0, 4, 1, 2)]), tmp_path / "lake" / "b.parquet")
    lines = [f"{e},0,{d},{c},{b},{a}" for a, b, c, d, e in Y.tolist()]
    (tmp_path / "c.csv").write_text("\n".join(["f_4,x,f_3,f_2,f_1,f_0", *lines]))
    np.save(tmp_path / "d.npy", Y)
    for number, name in enumerate(("lake", "c.csv", "d.npy")):
        plan = BackfillPlan("readings", make_plan(5).fold_config, FileOptions("f_*" * (number < 2)), number=number)
        chunks = chunks_of([str(tmp_path / name)])
        plan, first = add_names_of_dimensions(store, plan, chunks)
        assert ("read in their order" in first.notes) == (name == "d.npy")
        checkpoint = execute(store, plan, chunks, fold_here, lambda done: None)[0]
        assert checkpoint.names == [f"f_{i}" for i in range(5)]
        np.testing.assert_allclose(checkpoint.fold.state.mean, Y.mean(axis=0), rtol=1e-9)
    pq.write_table(named.drop_columns(["f_0"]), tmp_path / "e.parquet")
    with pytest.raises(InputError, match=r"has the columns f_1, .* but the dimensions are f_0, f_1"):
        add_names_of_dimensions(
            store, replace(plan, files=FileOptions("f_*")), chunks_of([str(tmp_path / "e.parquet")])
        )
    nameless = BackfillPlan("readings", make_plan(5).fold_config, FileOptions("f_*"))
    with pytest.raises(InputError, match=r"[ab]\.parquet has names .*, but the first file has none"):
        learn_files(fold_here, nameless, tmp_path / "lake")


def test_it_says_why_no_row_was_learned(tmp_path: Path) -> None:
    pq.write_table(make_table(make_rows(30, d=5)), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"of 30 rows 30 are not before --until .*, 0 were rejected$"):
        learn_files(fold_here, make_plan(5, until_ms=START_MS), tmp_path)
    (tmp_path / "empty.jsonl").touch()
    assert "no row was learned: the files have no rows" in refusal(
        InputError, learn_files, fold_here, make_plan(5), tmp_path / "empty.jsonl"
    )


@pytest.mark.parametrize(
    ("chunk", "names", "options", "window", "key"),
    [
        (Chunk("/lake/a.csv", 100, 5), None, FileOptions("a,b,c", header=True, separator=";"), (None, None),
         "a2efa798480f876072dd719d76d3c3b1"),
        (Chunk("/lake/a.parquet", 100, 5, 1, 2), ["a", "b", "c"], FileOptions(), ("time", 5),
         "64886d49d73163cc6d933b6d1df104ec"),
    ],
)  # fmt: skip
def test_what_an_earlier_release_has_learned_has_the_same_name(
    chunk: Chunk, names: list[str] | None, options: FileOptions, window: tuple[str | None, int | None], key: str
) -> None:
    """Otherwise the command that is repeated after an upgrade would be refused, as one of other files."""
    fold = FoldConfig(LearningConfig(3, 2), names=names)
    plan = BackfillPlan("readings", fold, options, *window)
    assert _make_chunk_key(chunk, plan) == key
