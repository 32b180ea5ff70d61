"""Laws of a partition's event time."""

import itertools
import statistics

import numpy as np
from hypothesis import given, settings, strategies as st

from streampca.fold.event_time import EventTime

DAY_MS = 24 * 3600 * 1000
WINDOW = 63

stamps = st.integers(-1, 10 * DAY_MS)
streams = st.lists(stamps, max_size=40) | st.builds(
    lambda seed, n: disordered(seed, n), st.integers(0, 2**32), st.integers(WINDOW, 150)
)


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
def test_cutting_records_into_batches_does_not_change_the_event_time(stream: list[int], cuts: list[int]) -> None:
    whole, steps = EventTime().advance(stream)
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    clock, parts = EventTime(), []
    for start, end in itertools.pairwise(bounds):
        clock, part = clock.advance(stream[start:end])
        parts.append(part)
    assert clock == whole
    assert np.concatenate(parts).tolist() == steps.tolist()


@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0.0, 1.0), wrong=st.integers(0, 2**40))
def test_wrong_timestamps_move_time_by_what_31_records_last(seed: int, share: float, wrong: int) -> None:
    """Up to 31 of any 63 consecutive ones, whatever they are."""
    random = np.random.default_rng(seed)
    stream = 2**39 + np.cumsum(random.integers(0, 1000, 400))
    is_wrong = np.zeros(400, bool)
    for i in np.flatnonzero(random.random(400) < share):
        is_wrong[i] = is_wrong[max(0, i - WINDOW + 1) : i].sum() < WINDOW // 2
    stamps = np.where(is_wrong, wrong, stream)
    for i in range(WINDOW - 1, 400, 7):
        now = EventTime().advance(stamps[: i + 1])[0].now_ms
        assert stream[i - WINDOW + 1] <= now <= stream[i]


def test_many_records_at_once_advance_time_as_single_records_do() -> None:
    """Their medians are computed in parts."""
    stream = (np.arange(9000) * 10 + np.random.default_rng(5).integers(0, 500, 9000)).tolist()
    whole, steps = EventTime().advance(stream)
    nows = reference(stream)
    assert whole.now_ms == nows[-1]
    assert (np.cumsum(steps)[-100:] + nows[31]).tolist() == nows[-100:]


def test_a_record_is_ahead_of_time_by_more_than_a_day() -> None:
    assert EventTime().advance([0] * 32 + [DAY_MS])[0].ahead == 0
    assert EventTime().advance([0] * 32 + [DAY_MS + 1])[0].ahead == 1
    assert EventTime().advance([0] * 31 + [DAY_MS + 1])[0].ahead == 0  # before a time is with_time, none is ahead of it


def test_after_a_pause_the_first_two_records_are_ahead_of_time() -> None:
    assert EventTime().advance([0] * WINDOW + [2 * DAY_MS + i for i in range(20)])[0].ahead == 2
