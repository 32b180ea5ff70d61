"""Rows of a lake are learned as those of a topic, wherever they are cut, up to where the topic begins."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from streampca.backfill import BackfillPlan, fold_batches, merge
from streampca.backfill.folding import Part
from streampca.files.columns import FileOptions
from streampca.fold import checkpoint as files
from streampca.pca.axes import make_model
from tests.backfill.rows import (
    START_MS,
    K,
    fold_here,
    learn_files,
    make_plan,
    make_rows,
    make_table,
    run_backfill,
    write_files,
)
from tests.pca.streams import excess


def test_it_is_as_accurate_as_batch_pca(lake: Path) -> None:
    fold = learn_files(fold_here, make_plan(), lake).fold
    assert (fold.stats.learned, fold.position, fold.state.weight) == (4000, 4000, 4000.0)
    np.testing.assert_allclose(fold.state.mean, make_rows(4000).mean(axis=0), rtol=1e-9)
    assert excess(make_model(fold.state, K).components, np.cov(make_rows(4000).T, bias=True)) < 1e-4


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), st.randoms())
@settings(max_examples=20, deadline=None)
def test_where_batches_are_cut_and_who_folds_first_changes_no_bit(sizes: list[int], random: Any) -> None:
    Y, backfill = make_rows(900, d=20), make_plan(20)
    cuts = np.cumsum(sizes) % 300
    chunks = [make_table(Y[start : start + 300], start) for start in (0, 300, 600)]
    parts: dict[int, Part] = {}
    for i in random.sample(range(3), 3):
        bounds = sorted({0, *cuts.tolist(), 300})
        parts[i] = fold_batches(
            (batch for a, b in itertools.pairwise(bounds) for batch in chunks[i][a:b].to_batches()), backfill
        )
    whole = [fold_batches(chunk.to_batches(), backfill) for chunk in chunks]
    assert files.encode(merge([parts[i] for i in range(3)], backfill)) == files.encode(merge(whole, backfill))


def test_the_past_is_forgotten_as_a_stream_forgets_it(tmp_path: Path) -> None:
    Y = np.vstack([make_rows(2000), make_rows(2000, seed=1) * 3])
    write_files(tmp_path / "lake", Y)
    for halving in ({"half_life_messages": 300.0}, {"half_life_seconds": 300.0}):
        fold = learn_files(fold_here, make_plan(**halving), tmp_path / "lake").fold
        assert fold.state.weight == pytest.approx(300 / np.log(2), rel=0.2)
        weights = 2.0 ** (-np.arange(len(Y))[::-1] / 300)
        np.testing.assert_allclose(fold.state.mean, np.average(Y, axis=0, weights=weights), atol=0.3)
    assert fold.stats.last_ms == START_MS + 3_999_000


@pytest.mark.parametrize(
    ("until", "said"),
    [
        ({"until_ms": START_MS + 600_000}, str(START_MS + 600_000)),
        ({"until_offsets": {0: 300, 1: 300}}, "0:300,1:300"),
    ],
    ids=["time", "offsets"],
)
def test_history_ends_where_the_topic_begins(tmp_path: Path, until: dict[str, Any], said: str) -> None:
    Y = make_rows(1000)
    more = {"partition": pa.array(np.arange(1000) % 2), "offset": pa.array(np.arange(1000) // 2)}
    pq.write_table(make_table(Y, **more), tmp_path / "lake.parquet")
    checkpoint = learn_files(fold_here, make_plan(**until), tmp_path / "lake.parquet")
    assert checkpoint.fold.stats.learned == 600
    np.testing.assert_allclose(checkpoint.fold.state.mean, Y[:600].mean(axis=0), rtol=1e-9)
    assert checkpoint.until == said


def test_rows_that_cannot_be_learned_are_counted_and_named(tmp_path: Path) -> None:
    good = make_rows(500, d=3).tolist()
    bad: list[Any] = [None, [1.0, 2.0], [1.0, None, 2.0], [float("inf"), 0.0, 0.0], [1e200, 0.0, 0.0]]
    lists = pa.array(good[:100] + bad + good[100:], pa.list_(pa.float64()))
    pq.write_table(pa.table({"v": lists}), tmp_path / "v.parquet", row_group_size=64)
    backfill = BackfillPlan("readings", make_plan(3).fold_config, FileOptions("v"))
    checkpoint, rejects = run_backfill(fold_here, backfill, tmp_path / "v.parquet")
    assert (checkpoint.fold.stats.learned, checkpoint.fold.stats.skipped) == (500, 1)
    assert checkpoint.fold.stats.rejected == {"wrong_length": 1, "not_finite": 2, "too_large": 1}
    assert rejects["reason"].to_pylist() == ["wrong_length", "not_finite", "not_finite", "too_large"]
    assert rejects["row"].to_pylist() == [37, 38, 39, 40]
    assert set(rejects["chunk"].to_pylist()) == {f"{tmp_path / 'v.parquet'}#1"}


@pytest.mark.parametrize(("until", "row"), [({"until_ms": START_MS + 450_000}, 0), ({"until_offsets": {0: 450}}, 499)])
def test_rows_that_do_not_say_whether_they_are_history_are_rejected(
    tmp_path: Path, until: dict[str, Any], row: int
) -> None:
    Y = make_rows(500, d=5)
    numbers = np.arange(500)
    positions = {"partition": pa.array([0] * 500), "offset": pa.array([*numbers[:-1].tolist(), None], pa.int64())}
    times = pa.array([None, *(START_MS + 1000 * numbers[1:]).tolist()], pa.timestamp("ms"))
    lake = make_table(Y, **positions).set_column(1, "time", times)
    pq.write_table(lake, tmp_path / "lake.parquet", row_group_size=200)
    checkpoint, rejects = run_backfill(fold_here, make_plan(5, **until), tmp_path)
    assert checkpoint.fold.stats.learned == 450 - (row == 0)
    assert checkpoint.fold.stats.rejected == {"no_position": 1}
    assert (rejects["row"].to_pylist(), rejects["chunk"][0].as_py()[-1]) == ([row % 200], str(row // 200))


def test_rejects_are_named_by_their_row_of_the_piece(tmp_path: Path) -> None:
    """Not by their row of what is history."""
    Y = make_rows(300, d=5)
    Y[250] = np.inf
    columns = {"partition": pa.array(np.arange(300) % 2), "offset": pa.array(np.arange(300) // 2)}
    pq.write_table(make_table(Y, **columns), tmp_path / "lake.parquet")
    _, rejects = run_backfill(fold_here, make_plan(5, until_offsets={0: 140}), tmp_path)
    assert rejects["row"].to_pylist() == [250]


def test_chunks_of_few_rows_are_forgotten_too(tmp_path: Path) -> None:
    """Fewer than a stream's time needs."""
    lake = write_files(tmp_path / "lake", make_rows(600, d=5), group=20)
    checkpoint = learn_files(fold_here, make_plan(5, half_life_seconds=100.0), lake)
    assert checkpoint.fold.state.weight == pytest.approx(100 / np.log(2), rel=0.2)
