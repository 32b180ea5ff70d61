"""The file of a subtotal: what was written is read back, and everything else is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streampca.errors import DamagedFileError
from streampca.stream import npz
from streampca.stream import subtotal as files
from streampca.stream.fold import FoldStats
from streampca.stream.subtotal import Subtotal
from tests.stream.streams import checkpoint_of, fold_config, fold_of, vectors

CONFIG = fold_config()


def subtotal(n: int = 300, dtype: str = "float64") -> Subtotal:
    config = fold_config(dtype=dtype)
    fold = fold_of(vectors(n), config, [10**12] * n).reject(["no_value"])
    one = Subtotal.of(checkpoint_of(fold, config, partition=3), config.learning)
    state = replace(one.state, N=np.diag(one.state.N.diagonal()), blocks=0, older=1.0)
    return replace(one, positions={**one.positions, 4: 7}, state=state)


@pytest.mark.parametrize("n", [0, 1, 300])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_reading_gives_what_was_written(n: int, dtype: str) -> None:
    written = subtotal(n, dtype)
    data = files.encode(written)
    read = files.decode(data)
    assert files.encode(read) == data
    assert read.positions == {3: written.positions[3], 4: 7}
    assert (read.partition, read.progress) == (3, written.positions[3] + 7)
    assert {partition: rows.tolist() for partition, rows in read.recent.items()} == {3: written.recent[3].tolist()}
    assert (read.stats, read.settings, read.time_ms) == (written.stats, written.settings, written.time_ms)
    assert read.state.C.dtype == dtype
    for name in ("C", "N", "mean", "weight", "total_variance", "count", "blocks"):
        np.testing.assert_array_equal(getattr(read.state, name), getattr(written.state, name))


def test_pending_messages_count() -> None:
    fold = fold_of(vectors(300), CONFIG)
    assert len(fold.pending)
    assert Subtotal.of(checkpoint_of(fold, CONFIG), CONFIG.learning).state.count == 300


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "model"}, {"format_version": 9}, {"weight": -1.0}, {"weight": float("nan")}, {"positions": {}},
        {"positions": {"x": 1}}, {"time_ms": -2}, {"count": 1.5}, {"tally": {}}, {"settings": {"dimensions": 6}},
        {"recent": {}}, {"recent": {"3": 1}}, {"recent": {"5": 44}}, {"recent": {"3": -1}},
    ],
)  # fmt: skip
def test_wrong_headers_are_refused(change: dict[str, Any]) -> None:
    header, arrays = npz.decode(files.encode(subtotal()), files.KIND, files.FORMAT_VERSION)
    with pytest.raises(DamagedFileError):
        files.decode(npz.encode(header | change, arrays))


@pytest.mark.parametrize("name", ["C", "variance", "mean", "recent"])
def test_wrong_arrays_are_refused(name: str) -> None:
    header, arrays = npz.decode(files.encode(subtotal()), files.KIND, files.FORMAT_VERSION)
    for wrong in (arrays[name][:-1], arrays[name] * np.nan, arrays[name].astype(np.float16)):
        with pytest.raises(DamagedFileError):
            files.decode(npz.encode(header, arrays | {name: wrong}))
    with pytest.raises(DamagedFileError):
        files.decode(npz.encode(header, {other: array for other, array in arrays.items() if other != name}))


def test_the_stats_of_partitions_add_up() -> None:
    stats = [fold_of(vectors(n, seed=n), fold_config()).stats for n in (600, 7, 300)]
    total = FoldStats.total(stats)
    assert total.learned == 907
    assert total.scored == sum(part.scored for part in stats)
    assert total.loss == pytest.approx(sum(part.scored * part.loss for part in stats) / total.scored)
    nested = FoldStats.total([FoldStats.total(stats[:2]), stats[2]])
    assert nested.norm_ewma == pytest.approx(total.norm_ewma)
    assert FoldStats.total([]) == FoldStats()
    rejects = [FoldStats(rejected={"a": 1, "b": 2}, first_ms=5, last_ms=9), FoldStats(rejected={"a": 4})]
    assert FoldStats.total(rejects) == FoldStats(rejected={"a": 5, "b": 2}, first_ms=5, last_ms=9)
