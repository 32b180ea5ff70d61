"""Laws of a partition's event time."""

import itertools
import statistics

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.fold.event_time import EventTime

DAY_MS = 24 * 3600 * 1000
HOUR_MS = 3600 * 1000
FAR = 10**15
WINDOW = 63

stamps = st.integers(-1, 10 * DAY_MS)
seeds = st.integers(0, 2**32)
streams = st.lists(stamps, max_size=40) | st.builds(
    lambda seed, n: disordered(seed, n), seeds, st.integers(WINDOW, 150)
)


def growing(seed: int, n: int) -> list[int]:
    """Timestamps in order."""
    return np.cumsum(np.random.default_rng(seed).integers(0, 1000, n)).tolist()  # type: ignore[no-any-return]


def disordered(seed: int, n: int) -> list[int]:
    """Timestamps that grow, in some disorder; some are unknown, some far ahead."""
    random = np.random.default_rng(seed)
    stamps = np.cumsum(random.integers(0, DAY_MS // 10, n)) + random.integers(0, DAY_MS, n)
    stamps[random.random(n) < random.choice([0.05, 0.5])] += 5 * DAY_MS
    stamps[random.random(n) < 0.05] = -1
    return stamps.tolist()  # type: ignore[no-any-return]


@settings(deadline=None)
@given(stream=streams)
def test_time_never_decreases_nor_exceeds_the_timestamps(stream: list[int]) -> None:
    clock, accepted = EventTime(), []
    for stamp in stream:
        after, [step] = clock.advance([stamp])
        assert step >= 0
        assert after.now_ms >= clock.now_ms
        assert step == (after.now_ms - clock.now_ms if clock.now_ms >= 0 else 0)
        assert after.now_ms <= max([-1, *stream])
        clock = after
        accepted.append(clock.now_ms)
    assert accepted == reference(stream)


def reference(stream: list[int]) -> list[int]:
    """The greatest median of 63 consecutive timestamps so far; unknown ones count as earlier than any."""
    with_time: list[int] = [-1] * WINDOW
    now, nows = -1, []
    for stamp in stream:
        if stamp >= 0:
            with_time.append(stamp)
            now = max(now, statistics.median_low(with_time[-WINDOW:]))
        nows.append(now)
    return nows


@settings(deadline=None)
@given(stream=streams, cuts=st.lists(st.integers(0, 150), max_size=6))
def test_poll_boundaries_do_not_matter(stream: list[int], cuts: list[int]) -> None:
    whole, steps = EventTime().advance(stream)
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    clock, parts = EventTime(), []
    for start, end in itertools.pairwise(bounds):
        clock, part = clock.advance(stream[start:end])
        parts.append(part)
    assert clock == whole
    assert np.concatenate(parts).tolist() == steps.tolist()


def test_many_records_at_once_equal_one_at_a_time() -> None:
    """Their medians are computed in parts."""
    stream = (np.arange(9000) * 10 + np.random.default_rng(5).integers(0, 500, 9000)).tolist()
    whole, steps = EventTime().advance(stream)
    nows = reference(stream)
    assert whole.now_ms == nows[-1]
    assert (np.cumsum(steps)[-100:] + nows[31]).tolist() == nows[-100:]


@settings(deadline=None)
@given(
    seed=seeds,
    positions=st.lists(st.integers(0, 230), min_size=1, max_size=31, unique=True),
    ahead_ms=st.sampled_from([HOUR_MS, FAR]),
)
def test_a_minority_of_timestamps_ahead_hardly_moves_time(seed: int, positions: list[int], ahead_ms: int) -> None:
    """Wherever up to 31 of them are, even one after the other, time never exceeds that of the true timestamps."""
    true = growing(seed, 200)
    stream = list(true)
    for position in sorted(positions):
        stream.insert(min(position, len(stream)), ahead_ms)
    assert EventTime().advance(stream)[0].now_ms <= true[-1]


@settings(deadline=None)
@given(seed=seeds, position=st.integers(0, 126))
def test_a_few_records_ahead_leave_no_trace(seed: int, position: int) -> None:
    stream = growing(seed, 3 * WINDOW)
    clock, _ = EventTime().advance([*stream[:position], *[HOUR_MS] * 3, *stream[position:]])
    assert (clock.now_ms, clock.recent) == (EventTime().advance(stream)[0].now_ms, tuple(stream[-62:]))


def test_a_majority_of_timestamps_advances_time() -> None:
    clock, steps = EventTime().advance([1000] * WINDOW + [FAR + i for i in range(WINDOW)])
    assert clock.now_ms == FAR + 31
    assert steps.tolist() == [0] * (WINDOW + 31) + [FAR - 1000] + [1] * 31


def test_a_record_is_ahead_of_time_by_more_than_a_day() -> None:
    assert EventTime().advance([0] * 32 + [DAY_MS])[0].ahead == 0
    assert EventTime().advance([0] * 32 + [DAY_MS + 1])[0].ahead == 1
    assert EventTime().advance([0] * 31 + [DAY_MS + 1])[0].ahead == 0  # before a time is with_time, none is ahead of it


def test_after_a_pause_the_first_two_records_are_ahead_of_time() -> None:
    assert EventTime().advance([0] * WINDOW + [2 * DAY_MS + i for i in range(20)])[0].ahead == 2


@settings(deadline=None)
@given(stream=streams, positions=st.lists(st.integers(0, 150), max_size=5))
def test_records_without_a_timestamp_change_nothing(stream: list[int], positions: list[int]) -> None:
    with_unknown = list(stream)
    for position in positions:
        with_unknown.insert(min(position, len(with_unknown)), -1)
    clock, steps = EventTime().advance(with_unknown)
    without, fewer = EventTime().advance(stream)
    assert clock == without
    assert steps[[stamp >= 0 for stamp in with_unknown]].tolist() == fewer[[s >= 0 for s in stream]].tolist()
    assert steps[[stamp < 0 for stamp in with_unknown]].sum() == 0


@settings(deadline=None)
@given(stream=streams)
def test_the_first_known_time_is_not_a_step(stream: list[int]) -> None:
    clock, steps = EventTime().advance(stream)
    first = next((now for now in reference(stream) if now >= 0), -1)
    assert steps.sum() == clock.now_ms - first
