"""A backfill continues after an interruption, and is saved once, if its settings are those of the store."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampca.backfill import BackfillPlan
from streampca.backfill.engines import Parts
from streampca.errors import InputError, SettingsError
from streampca.files.chunks import Chunk, chunks_of
from streampca.fold import checkpoint as files
from streampca.fold.partitions import FIRST_BACKFILL
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.memory import MemoryStore
from tests.backfill.rows import D, backfill_of, here, learned, rows


def test_one_that_is_interrupted_continues(lake: Path) -> None:
    store, chunks = MemoryStore(), chunks_of([str(lake)])
    asked: list[int] = []

    def breaks(chunks: Mapping[str, Chunk], backfill: BackfillPlan) -> Parts:
        asked.append(len(chunks))
        yield from itertools.islice(here(chunks, backfill), 3)
        if len(asked) == 1:
            raise KeyboardInterrupt
        yield from here(dict(list(chunks.items())[:-3]), backfill)

    with pytest.raises(KeyboardInterrupt):
        learned(breaks, backfill_of(), lake, store=store)
    assert Checkpoints(store, "readings").newest(FIRST_BACKFILL) is None
    expected = files.encode(learned(here, backfill_of(), lake))
    for _ in range(2):  # then it is done
        assert files.encode(learned(breaks, backfill_of(), lake, store=store)) == expected
    assert asked == [len(chunks), len(chunks) - 3]
    folder = "checkpoints/readings/backfill-0"
    assert store.names(folder) == [f"{folder}/{name}" for name in (f"{4000:020d}.npz", "rejects.parquet", "sources")]


def test_names_of_the_dimensions_must_agree_with_the_store_but_may_be_missing(lake: Path) -> None:
    names = [f"sensor {i}" for i in range(D)]

    def backfill(number: int, names: list[str] | None, field: str = "") -> BackfillPlan:
        plan = replace(backfill_of(), number=number)
        return replace(plan, fold_config=replace(plan.fold_config, names=names, field=field))

    store = MemoryStore()
    assert learned(here, backfill(0, None), lake, store=store).names is None
    assert learned(here, backfill(1, names, field="elsewhere"), lake, store=store).names == names
    learned(here, backfill(2, None), lake, store=store)
    with pytest.raises(SettingsError, match=r"names=sensor 0, .*now sensor 299"):
        learned(here, backfill(3, names[::-1]), lake, store=store)


@pytest.mark.parametrize("when", ["before", "while it folds"])
def test_other_settings_than_those_of_the_store_are_refused(lake: Path, when: str) -> None:
    """Before anything is learned, and again before saving: every worker of the store would end."""
    store, other = MemoryStore(), replace(backfill_of(half_life_messages=300.0), number=1)

    def fold(chunks: Mapping[str, Chunk], backfill: BackfillPlan) -> Parts:
        assert when != "before"
        yield from here(chunks, backfill)
        learned(here, backfill_of(), lake, store=store)

    if when == "before":
        learned(here, backfill_of(), lake, store=store)
    named = r"backfill-0 .* half_life_messages=None \(now 300.0\); .*`streampca backfill --remove 0`"
    with pytest.raises(SettingsError, match=named):
        learned(fold, other, lake, store=store)
    assert Checkpoints(store, "readings").newest(FIRST_BACKFILL + 1) is None


def test_a_backfill_without_a_row_is_not_saved(tmp_path: Path) -> None:
    """With corrected settings it can be started again."""
    store, lake = MemoryStore(), tmp_path / "lake"
    lake.mkdir()
    pq.write_table(pa.table({"embedding": pa.array(rows(300, d=5).tolist())}), lake / "lists.parquet")
    with pytest.raises(InputError, match="no row was learned; the first: 5 numbers, not 7"):
        learned(here, BackfillPlan("readings", backfill_of(7).fold_config, ("embedding",)), lake, store=store)
    checkpoint = learned(here, BackfillPlan("readings", backfill_of(5).fold_config, ("embedding",)), lake, store=store)
    assert checkpoint.fold.stats.learned == 300


def test_errors_say_what_is_wrong(lake: Path, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "empty").mkdir()
    for name, text in {
        "none": "there is no", "empty": r"no \.parquet, \.arrow", "x.parquet": r"x\.parquet cannot be read",
    }.items():  # fmt: skip
        with pytest.raises(InputError, match=text):
            chunks_of([str(tmp_path / name)])
    with pytest.raises(InputError, match="there is no column other; there are"):
        learned(here, BackfillPlan("readings", backfill_of().fold_config, ("embedding",), "other"), lake)
