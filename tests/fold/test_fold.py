"""The fold of a partition: the same bits for any batches; its values equal those of plain loops and NumPy."""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streampca.fold import checkpoint as files, npz
from streampca.fold.fold import Fold, FoldConfig
from streampca.formats.codec import Codec
from streampca.formats.errors import NO_VALUE
from streampca.formats.judge import Judge
from streampca.formats.record import Batch, Decoded, Record, Reject, batch_of_rows
from streampca.pca.arrays import Array
from streampca.pca.learning_config import SHORT_BLOCK
from tests.fold.streams import CONFIG, WARM_UP, D, bits, fold_config, learn, make_fold, vectors
from tests.pca.streams import covariance, find_covariance, with_gaps

CONFIGS = {
    "plain": fold_config(),
    "float32": fold_config(dtype="float32"),
    "half-life in messages": fold_config(half_life_messages=70.0),
    "half-life in messages, float32": fold_config(half_life_messages=3.0, dtype="float32"),
    "half-life in seconds": fold_config(half_life_seconds=3.0),
    "half-life in seconds, float32": fold_config(half_life_seconds=0.5, dtype="float32"),
    "not centred": fold_config(center=False),
    "all columns": fold_config(components=D, half_life_seconds=3.0),
    "default start": fold_config(warm_up=None),
    "a factor": fold_config(dimensions=300, factor=True),
    "a factor, half-life in messages, float32": fold_config(
        dimensions=300, half_life_messages=70.0, dtype="float32", factor=True
    ),
    "standardised": fold_config(standardize=True),
    "standardised, a factor, float32": fold_config(dimensions=30, standardize=True, dtype="float32", factor=True),
    "standardised, gaps, half-life in seconds": fold_config(half_life_seconds=3.0, standardize=True, impute=True),
    "gaps": fold_config(impute=True),
    "gaps, float32": fold_config(impute=True, dtype="float32"),
    "gaps, half-life in messages": fold_config(half_life_messages=70.0, impute=True),
    "gaps, half-life in seconds": fold_config(half_life_seconds=3.0, impute=True),
    "gaps, not centred": fold_config(impute=True, center=False),
}


def make_timestamps(n: int, seed: int = 1) -> list[int]:
    """Timestamps: mostly increasing, sometimes unknown, late or far in the future."""
    random = np.random.default_rng(seed)
    stamps = np.cumsum(random.integers(0, 100, n)) + 1_000_000 - random.integers(0, 50, n)
    stamps[random.random(n) < 0.05] = -1
    stamps[random.random(n) < 0.02] += 10**12
    return [int(stamp) for stamp in stamps]


def messages(config: FoldConfig, n: int, seed: int = 0) -> Array:
    """Messages (n, d); with gaps from a third on, where they may have some."""
    V = vectors(n, config.learning.dimensions, seed)
    if config.learning.impute:
        V[n // 3 :] = with_gaps(V[n // 3 :], 0.3, seed)
    return V.astype(config.learning.dtype)


def make_batch(V: Array, counts: Sequence[int], bad: Collection[int] = (), deletes: Collection[int] = ()) -> Batch:
    """Records with these numbers of vectors, at offsets that leave gaps, some of them bad or deletes."""
    records = [Record(2 * i + 5, b"", stamp, leader_epoch=3) for i, stamp in enumerate(make_timestamps(len(counts)))]
    is_good = [i not in bad and i not in deletes for i in range(len(counts))]
    good, vectors = np.flatnonzero(is_good), V[np.repeat(is_good, counts)]
    rejects = [Reject(i, ("undecodable", "too_large")[i % 2], "bad") for i in sorted(bad)]
    skipped = [Reject(i, NO_VALUE, "") for i in sorted(deletes)]
    decoded = Decoded(vectors, good, rejects, np.array(counts, np.int64)[good], skipped)
    return Batch(decoded, np.array([records[i].timestamp for i in good], np.int64), records, records[-1].offset + 1)


def cut(batch: Batch, start: int, end: int) -> Batch:
    """The records from `start` up to `end`."""
    first = batch.before(end) if end < len(batch.records) else batch
    skipped = batch.before(start).decoded if start < len(batch.records) else batch.decoded
    n, m = len(skipped.vectors), len(skipped.indices)
    rejects = [replace(reject, index=reject.index - start) for reject in first.decoded.rejects if reject.index >= start]
    deletes = [replace(delete, index=delete.index - start) for delete in first.decoded.skipped if delete.index >= start]
    decoded = Decoded(
        vectors=first.decoded.vectors[n:],
        indices=first.decoded.indices[m:] - start,
        rejects=rejects,
        counts=first.decoded.counts[m:],
        skipped=deletes,
    )
    return replace(first, decoded=decoded, timestamps=first.timestamps[m:], records=first.records[start:])


LENGTHS = [1, WARM_UP - 1, WARM_UP, WARM_UP + SHORT_BLOCK - 1, WARM_UP + SHORT_BLOCK, 200, 310]
COUNTS = st.sampled_from(LENGTHS).map(lambda n: [1] * n) | st.lists(
    st.sampled_from([1, 2, 3, 7, 64, 65, 100]), min_size=1, max_size=10
)


@pytest.mark.parametrize("name", CONFIGS)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_where_batches_are_cut_and_restarts_change_no_bit(name: str, data: st.DataObject) -> None:
    """A block may end within a record, which is still learned as a whole; the position is after it."""
    config, counts = CONFIGS[name], data.draw(COUNTS)
    n = len(counts)
    bad = data.draw(st.frozensets(st.integers(0, n - 1), max_size=n // 10))
    deletes = data.draw(st.frozensets(st.integers(0, n - 1), max_size=n // 10)) - bad
    whole = make_batch(messages(config, sum(counts)), counts, bad, deletes)
    expected, losses = Fold.empty(config.learning).take(whole, config)
    fold = Fold.empty(config.learning)
    cuts = data.draw(st.lists(st.integers(0, n), max_size=12) | st.just(list(range(n))))
    for start, end in itertools.pairwise(sorted({0, n, *cuts})):
        fold, _ = fold.take(cut(whole, start, end), config)
        if data.draw(st.booleans()):  # a restart from the checkpoint
            fold = files.decode(bits(fold, config)).fold
    assert bits(fold, config) == bits(expected, config)
    assert fold.stats.learned == len(whole.decoded.vectors)
    assert (sum(fold.stats.rejected.values()), fold.stats.skipped) == (len(bad), len(deletes))
    assert (fold.position, fold.last) == (whole.next, whole.last)
    assert sum(len(part.residual) for part in losses) == expected.stats.with_loss


@pytest.mark.parametrize("name", ["plain", "half-life in seconds, float32", "gaps, half-life in seconds"])
@given(deletes=st.lists(st.integers(0, 150), min_size=1, max_size=60), data=st.data())
@settings(max_examples=6, deadline=None)
def test_deletes_anywhere_change_nothing_that_is_learned(name: str, deletes: list[int], data: st.DataObject) -> None:
    """Whatever their timestamps, and wherever the stream is cut; they are counted, and the position moves past them."""
    config = CONFIGS[name]
    V, stamps = messages(config, 150), make_timestamps(150)
    codec = Codec("float64", Judge.of(config.learning))
    values: list[tuple[bytes | None, int]] = [(v.tobytes(), t) for v, t in zip(V.astype("<f8"), stamps, strict=True)]
    with_deletes = values.copy()
    for place in deletes:
        with_deletes.insert(place, (None, data.draw(st.sampled_from([-1, 0, 1_000_500, 10**13]))))

    def folded(stream: list[tuple[bytes | None, int]], cuts: list[int]) -> Fold:
        records, fold = [Record(i, *one) for i, one in enumerate(stream)], Fold.empty(config.learning)
        for start, end in itertools.pairwise(sorted({0, len(stream), *cuts})):
            fold, _ = fold.take(codec.decode_batch(records[start:end], records[end - 1].offset + 1), config)
        return fold

    cuts = data.draw(st.lists(st.integers(0, 150 + len(deletes)), max_size=8))
    plain, fold = folded(values, []), folded(with_deletes, cuts)
    assert (fold.position, fold.stats.skipped) == (150 + len(deletes), len(deletes))
    assert files.decode(bits(fold, config)).fold.stats == fold.stats
    assert bits(replace(fold, position=150, stats=replace(fold.stats, skipped=0)), config) == bits(plain, config)


@given(cuts=st.lists(st.integers(0, 3000), max_size=6), off=st.integers(1, 2500))
@settings(max_examples=10, deadline=None)
def test_with_a_sensor_that_is_off_at_first_cuts_of_batches_change_no_bit(cuts: list[int], off: int) -> None:
    config, n = CONFIGS["gaps"], 3000
    V = messages(config, n, off)
    V[:off, 1] = np.nan
    fold = Fold.empty(config.learning)
    for start, end in itertools.pairwise(sorted({0, n, *cuts})):
        fold, _ = learn(fold, V[start:end], range(start, end), end, config)
        fold.provisional(config.learning)
        fold = files.decode(bits(fold, config)).fold
    assert bits(fold, config) == bits(make_fold(V, config, range(n)), config)


@pytest.mark.parametrize("name", [name for name in CONFIGS if "gaps" in name])
def test_without_gaps_the_checkpoint_is_that_of_a_worker_that_refuses_them(name: str) -> None:
    config, V = CONFIGS[name], vectors(700, dtype=CONFIGS[name].learning.dtype)
    refusing = replace(config, learning=replace(config.learning, impute=False))
    ours = npz.decode(bits(make_fold(V, config), config), files.KIND, files.FORMAT_VERSION)
    plain = npz.decode(bits(make_fold(V, refusing), refusing), files.KIND, files.FORMAT_VERSION)
    assert ours[0]["settings"] == plain[0]["settings"] | {"missing": "impute"}
    assert ours[0] | {"settings": {}} == plain[0] | {"settings": {}}
    assert {name: array.tobytes() for name, array in ours[1].items()} == {n: a.tobytes() for n, a in plain[1].items()}


def test_a_batch_without_records_keeps_the_last_record() -> None:
    fold, _ = Fold.empty(CONFIG.learning).take(make_batch(vectors(9), [1] * 9), CONFIG)
    after, _ = fold.take(batch_of_rows(np.zeros((0, D)), fold.position + 7), CONFIG)
    assert (after.position, after.last) == (fold.position + 7, fold.last)


def test_vectors_are_converted_to_the_precision_of_the_fold() -> None:
    config, V = fold_config(dtype="float32"), vectors(30)
    fold = make_fold(V, config)
    assert fold.pending.dtype == np.float32
    assert bits(fold, config) == bits(make_fold(V.astype(np.float32), config), config)


def test_the_vectors_may_be_overwritten_after_learning() -> None:
    config, V = fold_config(), vectors(250)
    kept = V.copy()
    fold = make_fold(V, config)
    V[:] = np.nan
    assert bits(fold, config) == bits(make_fold(kept, config), config)


def test_a_half_life_in_seconds_weights_by_event_time() -> None:
    config, V = fold_config(components=D, half_life_seconds=4.0), vectors(250)
    stamps = np.cumsum(np.random.default_rng(3).integers(0, 200, 250)) + 10**12
    accepted = np.array([stamps[max(i - 31, 0)] for i in range(250)])  # the median of 63 records
    weights = 0.5 ** ((accepted[-1] - accepted) / 4000)
    fold = make_fold(V, config, [int(stamp) for stamp in stamps])
    state = fold.provisional(config.learning)
    assert fold.event_time.now_ms == accepted[-1]
    assert state.weight == pytest.approx(weights.sum())
    np.testing.assert_allclose(find_covariance(state), covariance(V, weights), atol=1e-10)


def test_a_gap_of_many_half_lives_forgets_everything_before_it() -> None:
    config, V = fold_config(components=D, half_life_seconds=1.0), vectors(200)
    fold = make_fold(V, config, [10**9] * 100 + [10**13] * 100)
    state = fold.provisional(config.learning)
    late = V[131:]  # the first 31 after the gap were learned before time advanced
    assert state.weight == pytest.approx(len(late))
    np.testing.assert_allclose(find_covariance(state), covariance(late), atol=1e-10)
    assert files.decode(bits(fold, config)).fold.position == 200


def test_only_a_half_life_in_seconds_forgets_over_time_without_messages() -> None:
    assert fold_config().compute_retention(np.array([0, 5, 10**12])).tolist() == [1, 1, 1]
    assert fold_config().compute_decay(10**12) == fold_config(half_life_messages=5.0).compute_decay(10**12) == 1
    config = fold_config(half_life_seconds=2.0)
    assert [config.compute_decay(ms) for ms in (0, 2000, 6000, 10**14)] == pytest.approx([1, 0.5, 0.125, 0])
    assert config.compute_retention(np.array([6000]))[0] == pytest.approx(config.compute_decay(6000))


def test_losses_are_averaged_over_all_messages_and_over_about_the_last_thousand() -> None:
    config, n = fold_config(), WARM_UP + 3 * SHORT_BLOCK + 7
    fold, losses = learn(Fold.empty(config.learning), vectors(n), [-1] * n, n, config)
    blocks = [(part.residual, part.norm) for part in losses if len(part.norm)]
    stats, kept = fold.stats, (1 - 1 / 1000) ** SHORT_BLOCK
    assert stats.with_loss == 3 * SHORT_BLOCK == sum(len(norm) for _, norm in blocks)
    for one, (mean, ewma) in enumerate([(stats.loss, stats.loss_ewma), (stats.norm, stats.norm_ewma)]):
        first, second, third = (np.mean(block[one]) for block in blocks)
        assert mean == pytest.approx((first + second + third) / 3, rel=1e-9)
        assert ewma == pytest.approx(kept * (kept * first + (1 - kept) * second) + (1 - kept) * third, rel=1e-9)
    assert 0 < stats.loss_ewma < stats.norm_ewma


STAMPS = st.integers(-1, 10**13) | st.sampled_from([-(2**63), -2, 2**63 - 2, 2**63 - 1])


@given(stamps=st.lists(STAMPS, max_size=30), cuts=st.lists(st.integers(0, 30), max_size=4))
@settings(max_examples=50, deadline=None)
def test_first_and_last_timestamp_are_minimum_and_maximum(stamps: list[int], cuts: list[int]) -> None:
    config, n = fold_config(), len(stamps)
    V, fold = vectors(n), Fold.empty(config.learning)
    for start, end in itertools.pairwise([0, *sorted(min(cut, n) for cut in cuts), n]):
        fold, _ = learn(fold, V[start:end], stamps[start:end], end, config)
    stamps = [stamp for stamp in stamps if stamp >= 0]
    assert (fold.stats.first_ms, fold.stats.last_ms) == (min(stamps, default=-1), max(stamps, default=-1))


def test_the_position_never_decreases_and_skips_offsets_without_records() -> None:
    fold, _ = learn(Fold.empty(CONFIG.learning), vectors(2), [-1, -1], 40, CONFIG)
    assert (fold.position, fold.stats.learned) == (40, 2)
    for position in (55, 50):  # transaction markers
        fold, _ = learn(fold, vectors(0), [], position, CONFIG)
        assert (fold.position, fold.stats.learned) == (55, 2)


def test_offsets_removed_by_retention_are_counted() -> None:
    fold, _ = learn(Fold.empty(CONFIG.learning), vectors(2), [-1, -1], 40, CONFIG)
    fold = fold.skip(100).skip(130)
    assert (fold.position, fold.stats.gap) == (130, 90)
    assert Fold.empty(CONFIG.learning).skip(100).stats.gap == 0  # no position yet, so nothing is lost


def test_without_time_a_record_of_many_vectors_equals_single_vectors() -> None:
    config, V = fold_config(half_life_messages=70.0), vectors(150)
    together, _ = learn(Fold.empty(config.learning), V, [-1] * 3, 3, config, np.array([20, 90, 40]))
    alone, _ = learn(Fold.empty(config.learning), V, [-1] * 150, 3, config)
    assert bits(together, config) == bits(alone, config)


def test_a_record_advances_time_once_however_many_vectors_it_has() -> None:
    """The median is that of records; many vectors of one record count once."""
    config = fold_config(components=D, half_life_seconds=4.0)
    stamps = [1000] * 32 + [10**12] + [5000] * 31
    counts = np.array([1] * 32 + [50] + [1] * 31)
    fold, _ = learn(Fold.empty(config.learning), vectors(113), stamps, 64, config, counts)
    assert (fold.event_time.now_ms, fold.event_time.ahead) == (5000, 1)
    assert fold.provisional(config.learning).weight == pytest.approx(112 / 2 + 1)  # after four seconds, one
